"""The transformer of the local engine: a plain functional forward for the Llama family.

Covers the Hugging Face architectures that differ only in biases, head norms and rotary scaling: llama,
mistral (without its window), qwen2, qwen3. Anything else is refused, never approximated. At the sizes the
quickstart trains, module overhead costs more than the arithmetic; hence fused projections and no modules.

Shapes: N tokens of all live sequences packed on one axis, E hidden, H query heads, K key/value heads,
D head dimension, F feed-forward, V vocabulary, L layers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from patchwright.errors import ConfigError, EngineError

__all__ = ["Attend", "Decoder", "Shape", "read_shape"]

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, q [N, H, D], k [N, K, D], v [N, K, D]) -> [N, H * D]: where the caller keeps keys and values."""

_FAMILY = ("llama", "mistral", "qwen2", "qwen3")
_ROPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shape:
    """What the forward needs to know of a model's `config.json`."""

    layers: int
    hidden: int
    feed_forward: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    max_context: int
    norm_eps: float
    head_norms: bool
    """Queries and keys are normalised per head (Qwen3)."""
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    tied: bool
    """The output head is the embedding."""
    inv_freq: tuple[float, ...]
    """Rotary frequencies, D / 2 of them."""
    rope_scale: float
    """Factor on cosine and sine (YaRN)."""


def read_shape(folder: Path) -> Shape:
    """Read `config.json`. Raises ConfigError when the folder or the architecture will not do."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} holds no config.json; give the path of a Hugging Face model folder")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (ValueError, KeyError, OSError) as error:
        raise ConfigError(f"{folder}/config.json cannot be read: {error}") from None
    if fault := _unfit(config):
        raise ConfigError(
            f"{folder}: the local engine cannot compute model_type '{config.model_type}': {fault}; "
            f"use one of {', '.join(_FAMILY)} with full attention, or another engine"
        )
    return _shape(config)


def _unfit(config: Any) -> str:
    """Why this architecture would be computed wrongly, or nothing."""
    kind = config.model_type
    if getattr(config, "is_encoder_decoder", False):
        return "it is an encoder-decoder"
    if kind not in _FAMILY:
        return "its attention or positions may differ from the Llama family's"
    windowed = config.sliding_window if kind == "mistral" else getattr(config, "use_sliding_window", False)
    layers = set(getattr(config, "layer_types", None) or ["full_attention"])
    if windowed or layers != {"full_attention"}:
        return "it uses sliding-window or linear attention"
    if getattr(config, "quantization_config", None):
        return "its weights are quantised"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}, not silu"
    rope = config.rope_parameters or {}
    if rope.get("rope_type", "default") not in _ROPES or rope.get("partial_rotary_factor", 1.0) != 1.0:
        return f"its rotary positions are of kind {rope.get('rope_type')}"
    return ""


def _shape(config: Any) -> Shape:
    kind = config.model_type
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    inv_freq, rope_scale = _rotary(config, head_dim)
    return Shape(
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        feed_forward=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=head_dim,
        vocab=config.vocab_size,
        max_context=config.max_position_embeddings,
        norm_eps=config.rms_norm_eps,
        head_norms=kind == "qwen3",
        qkv_bias=kind == "qwen2" or attention_bias,
        out_bias=kind != "qwen2" and attention_bias,
        mlp_bias=bool(getattr(config, "mlp_bias", False)),
        tied=bool(config.tie_word_embeddings),
        inv_freq=inv_freq,
        rope_scale=rope_scale,
    )


def _rotary(config: Any, head_dim: int) -> tuple[tuple[float, ...], float]:
    """Frequencies theta^(-2i/D) (Su et al. 2021), or transformers' own scaled variant of them."""
    rope = config.rope_parameters
    if (kind := rope.get("rope_type", "default")) != "default":
        inv_freq, scale = ROPE_INIT_FUNCTIONS[kind](config, torch.device("cpu"))
        return tuple(inv_freq.tolist()), float(scale)
    exponents = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    return tuple((1.0 / rope["rope_theta"] ** exponents).tolist()), 1.0


class _Linear:
    """A projection whose rows are several checkpoint matrices, computed as one."""

    def __init__(self, rows: int, columns: int, bias: bool, **to: Any) -> None:
        self.weight = torch.empty(rows, columns, **to)
        self.bias = torch.zeros(rows, **to) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        out = torch.addmm(residual, x, self.weight.t())
        return out if self.bias is None else out + self.bias

    def named(self, prefix: str, parts: dict[str, int]) -> dict[str, Tensor]:
        """Checkpoint name -> view of this projection, for `parts` stacked in order."""
        found: dict[str, Tensor] = {}
        first = 0
        for part, rows in parts.items():
            found[f"{prefix}.{part}.weight"] = self.weight[first : first + rows]
            if self.bias is not None:
                found[f"{prefix}.{part}.bias"] = self.bias[first : first + rows]
            first += rows
        return found


class _Layer:
    """The weights of one transformer layer."""

    def __init__(self, shape: Shape, **to: Any) -> None:
        width = shape.heads * shape.head_dim
        kv_width = shape.kv_heads * shape.head_dim
        self.norm_attention = torch.empty(shape.hidden, **to)
        self.norm_mlp = torch.empty(shape.hidden, **to)
        self.qkv = _Linear(width + 2 * kv_width, shape.hidden, shape.qkv_bias, **to)
        self.out = _Linear(shape.hidden, width, shape.out_bias, **to)
        self.gate_up = _Linear(2 * shape.feed_forward, shape.hidden, shape.mlp_bias, **to)
        self.down = _Linear(shape.hidden, shape.feed_forward, shape.mlp_bias, **to)
        # One row a head, so that queries and keys are normalised by one call.
        self.norm_heads = torch.empty(shape.heads + shape.kv_heads, shape.head_dim, **to)

    def named(self, shape: Shape, prefix: str) -> dict[str, Tensor]:
        width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        found = {
            f"{prefix}.input_layernorm.weight": self.norm_attention,
            f"{prefix}.post_attention_layernorm.weight": self.norm_mlp,
        }
        parts = {"q_proj": width, "k_proj": kv_width, "v_proj": kv_width}
        found |= self.qkv.named(f"{prefix}.self_attn", parts)
        found |= self.out.named(f"{prefix}.self_attn", {"o_proj": shape.hidden})
        found |= self.gate_up.named(
            f"{prefix}.mlp", {"gate_proj": shape.feed_forward, "up_proj": shape.feed_forward}
        )
        found |= self.down.named(f"{prefix}.mlp", {"down_proj": shape.hidden})
        if shape.head_norms:
            found[f"{prefix}.self_attn.q_norm.weight"] = self.norm_heads[: shape.heads]
            found[f"{prefix}.self_attn.k_norm.weight"] = self.norm_heads[shape.heads :]
        return found


class Decoder:
    """A causal language model: token ids and positions in, hidden states and logits out.

    Keys and values are the caller's: `forward` hands each layer's to `attend`.
    Raises ConfigError when the folder's weights are missing or do not fit.
    """

    def __init__(self, folder: Path, shape: Shape, *, dtype: torch.dtype, device: torch.device) -> None:
        to: dict[str, Any] = {"dtype": dtype, "device": device}
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self._embedding = torch.empty(shape.vocab, shape.hidden, **to)
        self._head = self._embedding if shape.tied else torch.empty(shape.vocab, shape.hidden, **to)
        self._norm = torch.empty(shape.hidden, **to)
        self._layers = [_Layer(shape, **to) for _ in range(shape.layers)]
        self._inv_freq = torch.tensor(shape.inv_freq, dtype=torch.float32, device=device)
        try:
            self.load(folder)
        except EngineError as error:
            raise ConfigError(f"{error}; give the path of a complete Hugging Face model folder") from None

    # --- weights ------------------------------------------------------------------------------

    def _named(self) -> dict[str, Tensor]:
        """Checkpoint name -> the tensor (often a view) it is copied into."""
        found = {"model.embed_tokens.weight": self._embedding, "model.norm.weight": self._norm}
        if not self.shape.tied:
            found["lm_head.weight"] = self._head
        for index, layer in enumerate(self._layers):
            found |= layer.named(self.shape, f"model.layers.{index}")
        return found

    def load(self, folder: Path) -> None:
        """Copy a folder's weights in. Raises EngineError, before any change, when they do not fit."""
        targets = self._named()
        sources = _read(folder, targets.keys())
        for name, target in targets.items():
            wanted = _file_shape(name, target)
            if (found := tuple(sources[name].shape)) != wanted:
                raise EngineError(f"{folder}: '{name}' has shape {found}, the model wants {wanted}")
        for name, target in targets.items():
            target.copy_(sources[name])

    # --- forward ------------------------------------------------------------------------------

    def forward(self, ids_N: Tensor, positions_N: Tensor, attend: Attend) -> Tensor:
        """Hidden states [N, E] of packed tokens, after the last layer and before the last norm."""
        shape = self.shape
        rotated = shape.heads + shape.kv_heads
        x = F.embedding(ids_N, self._embedding)
        cos, sin = self._cos_sin(positions_N)
        for index, layer in enumerate(self._layers):
            h = F.rms_norm(x, (shape.hidden,), layer.norm_attention, shape.norm_eps)
            qkv = layer.qkv(h).view(len(ids_N), rotated + shape.kv_heads, shape.head_dim)
            qk = qkv[:, :rotated]
            if shape.head_norms:
                qk = F.rms_norm(qk, (shape.head_dim,), None, shape.norm_eps) * layer.norm_heads
            qk = _rotate(qk, cos, sin)
            mixed = attend(index, qk[:, : shape.heads], qk[:, shape.heads :], qkv[:, rotated:])
            x = layer.out.add_to(x, mixed)
            h = F.rms_norm(x, (shape.hidden,), layer.norm_mlp, shape.norm_eps)
            gate, up = layer.gate_up(h).chunk(2, -1)
            x = layer.down.add_to(x, F.silu(gate).mul_(up))
        return x

    def logits(self, hidden_RE: Tensor) -> Tensor:
        """Logits [R, V] in float32."""
        normed = F.rms_norm(hidden_RE, (self.shape.hidden,), self._norm, self.shape.norm_eps)
        return F.linear(normed, self._head).float()

    def _cos_sin(self, positions_N: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and signed sine, each [N, 1, 2, D / 2], for `_rotate`."""
        angles = (positions_N.float()[:, None] * self._inv_freq)[:, None, None]
        cos, sin = angles.cos() * self.shape.rope_scale, angles.sin() * self.shape.rope_scale
        return cos.expand(-1, 1, 2, -1).to(self.dtype), torch.cat((-sin, sin), 2).to(self.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [N, heads, D], halves paired as Hugging Face pairs them."""
    halves = x.view(*x.shape[:-1], 2, -1)
    return torch.addcmul(halves * cos, halves.flip(2), sin).flatten(-2)


# --- safetensors folders ----------------------------------------------------------------------


def _read(folder: Path, names: Iterable[str]) -> dict[str, Tensor]:
    """Named weights of a folder. Raises EngineError when one is missing or a file is damaged."""
    missing = set(names)
    found: dict[str, Tensor] = {}
    for file in _files(folder):
        try:
            with safe_open(file, framework="pt") as opened:
                here = missing.intersection(opened.keys())
                found |= {name: opened.get_tensor(name) for name in here}
        except (SafetensorError, OSError) as error:
            raise EngineError(f"{file} cannot be read: {error}") from None
        missing -= here
    if missing:
        raise EngineError(f"{folder} lacks {len(missing)} weights of the model, first '{min(missing)}'")
    return found


def _files(folder: Path) -> list[Path]:
    """The folder's safetensors files: those its index names, else all."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        return [folder / name for name in sorted(names)]
    if files := sorted(folder.glob("*.safetensors")):
        return files
    raise EngineError(f"{folder} holds no *.safetensors file")


def _file_shape(name: str, target: Tensor) -> tuple[int, ...]:
    """The shape a weight has on disk: head norms are one row there, one row a head here."""
    shape = tuple(target.shape)
    return shape[1:] if name.endswith(("q_norm.weight", "k_norm.weight")) else shape
