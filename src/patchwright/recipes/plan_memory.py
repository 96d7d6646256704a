"""Bytes on a GPU, reckoned from shapes: what `--dry-run` prints. No torch.

Of the trainer, per parameter: 4 bytes of weight, 4 of gradient and 8 of AdamW's two averages, all float32
(`train/trainer.py`; ZeRO, arXiv 1910.02054, section 3.1, counts them so), spread over the ranks as FSDP2
spreads them (`train/shards.py`); with `offload` they are in the host's memory, and with `recompute` too the
layers' inputs. What is whole for a while, activations and logits are below.

An estimate, not a measurement: allocators waste, kernels have work space, and what a layer keeps was counted
for Qwen3 (a test counts again). Leave a tenth of a GPU free.
"""

from __future__ import annotations

from dataclasses import dataclass

from patchwright.engine.config import LocalEngineConfig
from patchwright.recipes.plan_model import Shape
from patchwright.train.config import TrainConfig

__all__ = [
    "EngineMemory",
    "Part",
    "engine_memory",
    "host_memory",
    "host_peak",
    "kept_bytes",
    "local_memory",
    "lora_parameters",
    "ranks_text",
    "trainer_memory",
]

HELD_GRADIENT = 2**29
"""`train/shards.py`: trained parameters up to which every rank keeps a whole gradient."""
MAX_LOGITS = 2**25
"""`train/model.py`: logits held at once."""
_KEPT = {"bfloat16": (26, 10, 8), "float32": (24, 16, 16)}
"""Bytes a decoder layer keeps for its way back, of one token: per unit of width, per dimension of a head, per
unit of the feed-forward layer. Counted of transformers' Qwen3 with saved-tensor hooks; the method is that of
arXiv 2205.05198, section 4.1, whose layer is another. Flash attention keeps no scores."""


@dataclass(frozen=True, slots=True)
class Part:
    """A share of a GPU's memory. Example: `Part("gradient", 4_000_000_000, "4 bytes x 8e9 / 8")`"""

    name: str
    bytes: float
    how: str
    """The sum, for whoever wants to check it."""


def kept_bytes(shape: Shape, dtype: str) -> int:
    """What one layer keeps of one token for its way back."""
    width, head, feed = _KEPT[dtype]
    heads = (shape.heads + shape.kv_heads) * shape.head_dim
    return width * shape.hidden + head * heads + feed * shape.intermediate * max(1, shape.active_experts)


def trainer_memory(shape: Shape, train: TrainConfig, longest: int) -> list[Part]:
    """Of one rank, at the peak of a step whose longest row has so many tokens."""
    tokens = max(train.micro_batch_tokens, longest)
    trained = shape.parameters if train.lora is None else lora_parameters(shape, train)
    states = [] if train.offload else _states(shape, train, trained)
    return [
        *states,
        *_gathered(shape, train, trained),
        _activations(shape, train, tokens),
        Part("logits", 3 * 4 * MAX_LOGITS, "logits, log-softmax and gradient: 3 x 4 bytes x 2^25"),
    ]


def host_memory(shape: Shape, train: TrainConfig, longest: int) -> float:
    """Bytes that a rank with `offload` keeps in the host's memory."""
    trained = shape.parameters if train.lora is None else lora_parameters(shape, train)
    inputs = 4 * shape.hidden * shape.layers * max(train.micro_batch_tokens, longest) * train.recompute
    return sum(part.bytes for part in _states(shape, train, trained)) + inputs


def host_peak(shape: Shape, train: TrainConfig, longest: int) -> float:
    """Most bytes of the host's memory that a rank takes: it reads the whole model, in float32, and keeps what
    `offload` says. Outside of these are Python and torch."""
    held = host_memory(shape, train, longest) if train.offload else 0.0
    return max(4.0 * shape.parameters, held)


def _states(shape: Shape, train: TrainConfig, trained: int) -> list[Part]:
    """What stays from step to step."""
    ranks = train.ranks
    every = shape.parameters + (trained if train.lora else 0)
    held = ranks > 1 and trained <= HELD_GRADIENT and not train.offload
    over = 1 if held else ranks
    return [
        Part("weights", 4 * every / ranks, f"4 bytes x {_billions(every)} / {ranks_text(ranks)}"),
        Part("gradient", 4 * trained / over, f"4 bytes x {_billions(trained)} / {over}"),
        Part("optimizer", 8 * trained / ranks, f"8 bytes x {_billions(trained)} / {ranks_text(ranks)}"),
    ]


def _gathered(shape: Shape, train: TrainConfig, trained: int) -> list[Part]:
    """What is whole only for a while, or is there twice."""
    half = train.dtype == "bfloat16"
    if train.ranks == 1 and not train.offload:
        size = 2 * trained if half else 0
        return [Part("weights in bfloat16", size, "2 bytes each, kept by autocast")] if size else []
    alike, each = train.lora is None, 2 if half else 4
    layer = (2 * each + (each + 4) * alike) * shape.layer
    outside = (4 + 4 * alike) * shape.outside
    return [
        Part("layers made whole", layer, f"this one and the next: {_billions(shape.layer)} each"),
        Part("embedding and head", outside, f"whole until the way back ends: {_billions(shape.outside)}"),
    ]


def _activations(shape: Shape, train: TrainConfig, tokens: int) -> Part:
    kept = kept_bytes(shape, train.dtype)
    if not train.recompute:
        how = f"{tokens:,} tokens x {shape.layers} layers x {kept:,} bytes"
        return Part("activations", tokens * shape.layers * kept, how)
    layers = 2 if train.offload else shape.layers  # the one that is computed, and the one on its way
    how = f"{tokens:,} tokens x ({layers} layers x {4 * shape.hidden:,} + {kept:,} bytes)"
    return Part("activations", tokens * (layers * 4 * shape.hidden + kept), how)


def lora_parameters(shape: Shape, train: TrainConfig) -> int:
    """Of the two matrices beside each linear layer that gets them."""
    assert train.lora is not None
    wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    sides = {
        "q_proj": shape.hidden + wide,
        "k_proj": shape.hidden + narrow,
        "v_proj": shape.hidden + narrow,
        "o_proj": shape.hidden + wide,
    }
    feed = (shape.hidden + shape.intermediate) * max(1, shape.experts)
    sides |= dict.fromkeys(("gate_proj", "up_proj", "down_proj"), feed)
    targets = train.lora.targets or tuple(sides)
    each = sum(size for name, size in sides.items() if name.endswith(targets))
    return train.lora.rank * each * shape.layers


def local_memory(shape: Shape, engine: LocalEngineConfig, running: int, context: int) -> list[Part]:
    """Of the local engine with so many attempts under way, each with a whole context of keys and values."""
    each = 2 if engine.dtype == "bfloat16" else 4
    token = shape.kv_bytes(bytes_each=each)
    how = f"{running} attempts x {context:,} tokens x {token:,} bytes"
    kept = f"of ended requests, for those that go on: cache_mb = {engine.cache_mb}"
    return [
        Part("weights", each * shape.parameters, f"{each} bytes x {_billions(shape.parameters)}"),
        Part("keys and values", running * context * token, how),
        Part("kept prefixes", engine.cache_mb * 2**20, kept),
    ]


def ranks_text(ranks: int) -> str:
    """1 rank, 2 ranks."""
    return f"{ranks} rank{'' if ranks == 1 else 's'}"


def _billions(count: float) -> str:
    return f"{count / 1e9:.2f}e9"


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineMemory:
    """Of one GPU of a model server. Example: `engine_memory(shape, 80e9, share=0.55, parallel=4)`"""

    weights: float
    cache: float
    """Left for keys and values; below 0 when the weights do not fit."""
    token: int
    """Bytes of one token's keys and values."""

    @property
    def tokens(self) -> int:
        """Tokens whose keys and values fit, of all requests of the server together."""
        return max(0, int(self.cache / self.token))


def engine_memory(shape: Shape, memory: float, *, share: float, parallel: int) -> EngineMemory:
    """What a server in bfloat16 over `parallel` GPUs of so many bytes has on each, of which it takes a share
    for weights, keys and values. Formula of the cache: vLLM's paper, arXiv 2309.06180, section 3."""
    weights = 2 * shape.parameters / parallel
    return EngineMemory(
        weights=weights, cache=share * memory - weights, token=shape.kv_bytes(parallel=parallel)
    )
