"""Causal language models: made small, loaded from a Hugging Face folder, run over a batch of rows.

Shapes: B rows, T positions (longest row), N trained tokens (weight > 0), D hidden size, V vocabulary.

Rows are padded on the right and attention is plain causal, without a mask: a position never sees what comes
after it, so padding influences nothing and the fast attention kernels apply to every architecture. Rows that
begin alike, or are of unlike length, are one row of a forest instead (`train/tree.py`), with the attention of
`train/attention.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from patchwright.errors import ConfigError
from patchwright.train.attention import PlacedTree, forward_tree
from patchwright.train.config import ModelConfig
from patchwright.train.loss import token_logprobs
from patchwright.train.tokenizer import END_OF_TURN, PAD
from patchwright.train.tree import Forest
from patchwright.types import Sample

__all__ = ["MAX_LOGITS", "Batch", "collate", "load_model", "logprobs", "new_model"]

MAX_LOGITS = 2**25
"""Logits (tokens x vocabulary) held at once: 128 MB of float32."""


def new_model(config: ModelConfig, tokenizer: Tokenizer) -> Qwen3ForCausalLM:
    """A freshly initialised model for `tokenizer`, embeddings tied, float32."""
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=config.hidden_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.intermediate_size,
            max_position_embeddings=config.max_positions,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            eos_token_id=tokenizer.token_to_id(END_OF_TURN),
            pad_token_id=tokenizer.token_to_id(PAD),
        )
    )
    _initialise(model, config)
    return model


@torch.no_grad()
def _initialise(model: nn.Module, config: ModelConfig) -> None:
    """Deviation 0.02 for embeddings, 1/sqrt(fan-in) for matrices; what writes into the residual stream is
    scaled by 0.5/sqrt(layers), so that its variance does not grow with depth."""
    generator = torch.Generator().manual_seed(config.seed)
    for name, weight in model.named_parameters():
        if weight.dim() != 2:
            continue
        deviation = 0.02 if "embed_tokens" in name else weight.shape[1] ** -0.5
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            deviation *= 0.5 / math.sqrt(config.layers)
        weight.normal_(0.0, deviation, generator=generator)


def load_model(folder: str | Path) -> PreTrainedModel:
    """The model of a Hugging Face folder, in float32, dropout off.

    Raises ConfigError when the folder, its config or weights are missing, or when its architecture is not one
    that ends in a plain linear head over causal attention.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"{folder} is not a model folder (no config.json); give a Hugging Face model folder"
        )
    if not any(folder.glob("*.safetensors")):
        raise ConfigError(f"{folder} has no *.safetensors weights; download or convert them")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ConfigError(f"the model in {folder} cannot be loaded: {error}") from error
    model, info = cast(tuple[PreTrainedModel, dict[str, set[str]]], loaded)
    if info["missing_keys"]:
        raise ConfigError(
            f"the weights in {folder} lack {min(info['missing_keys'])}; the folder is incomplete"
        )
    model.train(False)
    _check_head(model, folder)
    return model


@torch.no_grad()
def _check_head(model: PreTrainedModel, folder: Path) -> None:
    """Log-probs are read from the last hidden states: refuse a model that does more after them."""
    ids_BT = torch.arange(4)[None]
    direct_BTV = _head(model)(_decoder(model)(input_ids=ids_BT, use_cache=False).last_hidden_state)
    if not torch.allclose(direct_BTV, model(input_ids=ids_BT, use_cache=False).logits, atol=1e-4, rtol=1e-4):
        raise ConfigError(
            f"the model in {folder} transforms its logits (soft-capping?), which cannot be trained"
        )


def _hidden(model: PreTrainedModel, batch: Batch) -> Tensor:
    decoder = _decoder(model)
    if batch.tree is not None:
        return forward_tree(decoder, batch.ids_BT, batch.tree)
    return cast(Tensor, decoder(input_ids=batch.ids_BT, use_cache=False).last_hidden_state)


def _decoder(model: PreTrainedModel) -> nn.Module:
    return cast(nn.Module, model.get_decoder())  # type: ignore[no-untyped-call]


def _head(model: PreTrainedModel) -> nn.Module:
    return cast(nn.Module, model.get_output_embeddings())  # type: ignore[no-untyped-call]


# --- batches ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows as tensors. `position_N` is where a trained token is predicted, in the flattened B x T grid: the
    place of the token before it. Tokens stand in the order of their rows."""

    ids_BT: Tensor
    position_N: Tensor
    target_N: Tensor
    old_logprobs_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    tree: PlacedTree | None = None
    """How the tokens attend when the rows are a forest (then B is 1)."""


def collate(
    samples: Sequence[Sample], device: str | torch.device = "cpu", forest: Forest | None = None
) -> Batch:
    """Rows padded on the right with id 0, or as laid out in their `forest`, and what belongs to the tokens
    that train."""
    width = max(len(sample) for sample in samples)
    picked = [(row, t) for row, s in enumerate(samples) for t in range(1, len(s)) if s.weights[t] > 0]
    if forest is None:
        ids = [sample.token_ids + (0,) * (width - len(sample)) for sample in samples]
        position = [row * width + t - 1 for row, t in picked]
    else:
        ids = [forest.token_ids]
        position = [forest.places[row][t - 1] for row, t in picked]

    def floats(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    def integers(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    return Batch(
        ids_BT=torch.tensor(ids).to(device),
        position_N=integers(position),
        target_N=integers([samples[row].token_ids[t] for row, t in picked]),
        old_logprobs_N=floats([samples[row].logprobs[t] for row, t in picked]),
        advantages_N=floats([samples[row].advantages[t] for row, t in picked]),
        weights_N=floats([samples[row].weights[t] for row, t in picked]),
        tree=None if forest is None else PlacedTree.of(forest, device),
    )


def logprobs(
    model: PreTrainedModel,
    batch: Batch,
    *,
    temperature: float = 1.0,
    train_entropy: bool = False,
    max_logits: int = MAX_LOGITS,
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the batch's trained tokens (both N), as of sampling at `temperature`.

    The head runs over trained positions only, so the logits of prompts and padding are never made. Past
    `max_logits` (tokens x vocabulary) they are made in pieces, and once more on the way back.
    """
    hidden_ND = _hidden(model, batch).flatten(0, 1)[batch.position_N]
    head = _head(model)

    def piece(hidden_KD: Tensor, target_K: Tensor) -> tuple[Tensor, Tensor]:
        return token_logprobs(head(hidden_KD), target_K, temperature=temperature, train_entropy=train_entropy)

    rows = max(1, max_logits // int(model.config.get_text_config().vocab_size))
    if len(hidden_ND) <= rows:
        return piece(hidden_ND, batch.target_N)
    pairs = zip(torch.split(hidden_ND, rows), torch.split(batch.target_N, rows), strict=True)
    pieces = [checkpoint(piece, hidden, target, use_reentrant=False) for hidden, target in pairs]
    logprob_pieces, entropy_pieces = zip(*pieces, strict=True)
    return torch.cat(logprob_pieces), torch.cat(entropy_pieces)
