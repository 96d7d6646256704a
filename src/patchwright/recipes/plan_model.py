"""How large a model is, from its `config.json` alone: parameters, and bytes of keys and values."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchwright.config import nearest
from patchwright.errors import ConfigError

__all__ = ["Shape", "find_shape", "shape_of"]

_KNOWN = Path(__file__).parent / "presets" / "models.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What a decoder is made of: gated feed-forward layers, dense or of experts, grouped-query attention.

    Example: `find_shape(Path("models/new"), "").parameters`
    """

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    """Width of the feed-forward layer, or of one expert."""
    vocabulary: int
    tied: bool
    """Embedding and head are one matrix."""
    experts: int = 0
    """Experts of each layer; 0: a dense layer."""
    active_experts: int = 0
    """Of them, those a token goes through."""
    biased: bool = False
    """Queries, keys and values have a bias (Qwen2)."""
    normed: bool = False
    """Queries and keys are normalised (Qwen3)."""
    positions: int = 0
    """Tokens of the longest context; 0 where nobody says."""

    @property
    def attention(self) -> int:
        """Parameters of one layer's attention."""
        wide, narrow = self.heads * self.head_dim, self.kv_heads * self.head_dim
        bias = wide + 2 * narrow if self.biased else 0
        norms = 2 * self.head_dim if self.normed else 0
        return 2 * self.hidden * (wide + narrow) + bias + norms

    @property
    def layer(self) -> int:
        """Parameters of one layer, with its two norms and its router."""
        feed = 3 * self.hidden * self.intermediate
        router = self.hidden * self.experts
        return self.attention + feed * max(1, self.experts) + router + 2 * self.hidden

    @property
    def outside(self) -> int:
        """Parameters in no layer: embedding, head, last norm."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2) + self.hidden

    @property
    def parameters(self) -> int:
        """All of them."""
        return self.layers * self.layer + self.outside

    def kv_bytes(self, *, parallel: int = 1, bytes_each: int = 2) -> int:
        """Of one token's keys and values on one of `parallel` GPUs. Heads are shared out whole, so with more
        GPUs than heads some keep the same (vLLM, SGLang)."""
        return 2 * self.layers * -(-self.kv_heads // parallel) * self.head_dim * bytes_each


def find_shape(model: Path | None, name: str) -> Shape:
    """The shape of a model folder; where there is none, of a model that presets name.

    Raises ConfigError when neither says.
    """
    if model is not None and (model / "config.json").is_file():
        return shape_of(_read(model / "config.json"))
    known = tomllib.loads(_KNOWN.read_text(encoding="utf-8"))
    if name in known:
        return shape_of(known[name])
    close = nearest(name, list(known))
    hint = f"did you mean `{close}`?" if close else f"it knows {', '.join(known)}"
    given = f"`cluster.model` {name!r}" if name else f"--model {model}"
    raise ConfigError(f"{given} is no model folder and no model that --dry-run knows; {hint}")


def shape_of(config: Mapping[str, Any]) -> Shape:
    """The shape a `config.json` describes. Raises ConfigError when it lacks a size."""
    experts = int(config.get("num_experts") or 0)
    kind = str(config.get("model_type", ""))
    try:
        hidden, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
        return Shape(
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or hidden // heads),
            intermediate=int(config["moe_intermediate_size" if experts else "intermediate_size"]),
            vocabulary=int(config["vocab_size"]),
            tied=bool(config.get("tie_word_embeddings")),
            experts=experts,
            active_experts=int(config.get("num_experts_per_tok") or 0) if experts else 0,
            biased=kind.startswith("qwen2"),
            normed=kind.startswith("qwen3"),
            positions=int(config.get("max_position_embeddings") or 0),
        )
    except KeyError as error:
        raise ConfigError(f"the model's config.json has no {error}, so --dry-run cannot reckon") from None


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} holds no object; give a Hugging Face model folder")
    return found
