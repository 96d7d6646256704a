"""Attention over a forest of rows (`train/tree.py`): a token sees its ancestors and itself.

Sits between `tree` and the model. transformers hands every layer's queries, keys and values to one function,
`_attend`, registered under the name `IMPLEMENTATION`; a forest travels to it as the call's `prefix_tree`.
Without one the function is transformers' own SDPA attention, so plain rows are computed as ever.

On a CPU each segment of the forest is one SDPA call over its past and itself: just the arithmetic needed. On
CUDA the forest is one FlexAttention call, whose blocks of 128 tokens are skipped where nobody sees anybody.

Shapes: T tokens of the forest, Q queries and K keys of a stretch, H query heads, G key/value heads,
D head dimension.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from patchwright.errors import ConfigError
from patchwright.train.tree import Forest, Range, Segment

__all__ = ["BlockAttention", "PlacedTree", "SegmentAttention", "block_mask", "enable_trees", "forward_tree"]

IMPLEMENTATION = "patchwright"
BLOCK = 128
"""Tokens per side of FlexAttention's blocks: the kernels' own size."""
STRETCH = 256
"""Queries of one SDPA call of a segment that has a past."""

Attend = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""(q [1, H, T, D], k [1, G, T, D], v [1, G, T, D], scale) -> [1, H, T, D] for one forest."""


@dataclass(frozen=True, slots=True)
class PlacedTree:
    """What of a forest the model needs, on its device."""

    depths_1T: Tensor
    attend: Attend

    @classmethod
    def of(cls, forest: Forest, device: torch.device | str) -> PlacedTree:
        """Segments on a CPU, blocks on CUDA."""
        on_cuda = torch.device(device).type == "cuda"
        attend: Attend = BlockAttention(forest, device) if on_cuda else SegmentAttention(forest, device)
        return cls(torch.tensor([forest.depths], device=device), attend)


# --- one SDPA call per stretch of a segment ---------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Queries from `start` to `stop`, and the keys before the last of them that they see."""

    start: int
    stop: int
    keys: tuple[Range, ...]
    mask_QK: Tensor | None
    """0 where a query sees a key, else minus infinity; None for plain causal."""


class SegmentAttention:
    """A forest as its segments, computed one after the other."""

    def __init__(self, forest: Forest, device: torch.device | str = "cpu") -> None:
        most = max((segment.stop - segment.start + _past(segment) for segment in forest.segments), default=0)
        edge = _Edge(most, device) if any(segment.past for segment in forest.segments) else None
        self._stretches = [one for segment in forest.segments for one in _stretches(segment, edge)]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See `Attend`."""
        pieces = [_piece(stretch, query, key, value, scale) for stretch in self._stretches]
        return torch.cat(pieces, 2)


class _Edge:
    """The masks of all stretches as views of one, of `STRETCH` rows. They are numbers, since SDPA turns truth
    values into numbers, a copy for each call, and keeps it until the way back."""

    def __init__(self, keys: int, device: torch.device | str) -> None:
        self._width = keys
        hidden = torch.full((STRETCH, keys + STRETCH), -torch.inf, device=device)
        self._whole = hidden.triu_(keys + 1)

    def mask(self, queries: int, keys: int) -> Tensor:
        """For queries that are the last of so many keys: each sees itself and what is before it."""
        first = self._width - (keys - queries)
        return self._whole[:queries, first : first + keys]


def _past(segment: Segment) -> int:
    return sum(last - first for first, last in segment.past)


def _stretches(segment: Segment, edge: _Edge | None) -> Iterator[_Stretch]:
    """A segment without a past is plain causal attention. Others are cut, since a mask makes SDPA look at all
    keys of every query: short stretches leave out the keys after them."""
    if not segment.past or edge is None:
        yield _Stretch(segment.start, segment.stop, ((segment.start, segment.stop),), None)
        return
    for start in range(segment.start, segment.stop, STRETCH):
        stop = min(start + STRETCH, segment.stop)
        mask = edge.mask(stop - start, _past(segment) + stop - segment.start)
        yield _Stretch(start, stop, (*segment.past, (segment.start, stop)), mask)


def _piece(stretch: _Stretch, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    return F.scaled_dot_product_attention(
        query[:, :, stretch.start : stretch.stop],
        torch.cat([key[:, :, first:last] for first, last in stretch.keys], 2),
        torch.cat([value[:, :, first:last] for first, last in stretch.keys], 2),
        attn_mask=stretch.mask_QK,
        is_causal=stretch.mask_QK is None,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    )


# --- FlexAttention ----------------------------------------------------------------------------


class BlockAttention:
    """A forest as one call of FlexAttention."""

    def __init__(self, forest: Forest, device: torch.device | str) -> None:
        self.mask = block_mask(torch.tensor(forest.ends, device=device))
        eager = cast(Callable[..., Any], flex_attention)
        self._flex = _compiled_flex() if torch.device(device).type == "cuda" else eager

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See `Attend`."""
        out = self._flex(
            query,
            key,
            value,
            block_mask=self.mask,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        return cast(Tensor, out)


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """Compiled once a process; lengths are dynamic, or every micro-batch would compile anew."""
    return torch.compile(flex_attention, dynamic=True)


def block_mask(ends_T: Tensor) -> BlockMask:
    """FlexAttention's mask of a forest, found from the bounds of blocks: (T / 128)^2 work, never T^2.

    Before the diagonal a block of keys is seen in full when its first end lies past the last query, and not
    at all when its last end does not lie past the first query.
    """
    tokens = len(ends_T)
    count = -(-tokens // BLOCK)
    padded = F.pad(ends_T, (0, count * BLOCK - tokens), value=0).view(count, BLOCK)
    earliest, latest = padded.min(1).values, padded.max(1).values
    first = torch.arange(count, device=ends_T.device) * BLOCK
    last = first + BLOCK - 1  # of a ragged block past the end: torch too never calls such blocks full
    before = torch.ones(count, count, dtype=torch.bool, device=ends_T.device).tril(-1)
    full = before & (earliest[None] > last[:, None])
    partial = before & (latest[None] > first[:, None]) & ~full
    partial.fill_diagonal_(True)

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends_T[key])

    return BlockMask.from_kv_blocks(
        *_listed(partial), *_listed(full), BLOCK_SIZE=BLOCK, mask_mod=sees, seq_lengths=(tokens, tokens)
    )


def _listed(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """How many key blocks each query block has, and which: those first, in order."""
    counts = blocks.sum(1, dtype=torch.int32)[None, None]
    order = blocks.int().argsort(dim=1, descending=True, stable=True).int()[None, None]
    return counts, order


# --- within transformers ----------------------------------------------------------------------


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    prefix_tree: Attend | None = None,
    scaling: float | None = None,
    **rest: Any,  # what models pass to whatever implementation
) -> tuple[Tensor, None]:
    """The signature is transformers'."""
    if prefix_tree is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **rest)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return prefix_tree(query, key, value, scale).transpose(1, 2).contiguous(), None


def forward_tree(decoder: nn.Module, ids_1T: Tensor, tree: PlacedTree) -> Tensor:
    """Hidden states [1, T, E] of a forest. The decoder's model must have passed `enable_trees`."""
    out = decoder(
        input_ids=ids_1T,
        position_ids=tree.depths_1T,
        attention_mask=ids_1T.new_ones(1, 1, 1, 1),  # four dimensions: transformers makes none of its own
        prefix_tree=tree.attend,
        use_cache=False,
    )
    return cast(Tensor, out.last_hidden_state)


def enable_trees(model: PreTrainedModel) -> None:
    """Let the model compute forests. Plain rows go on as before, to the bit.

    Raises ConfigError when the model cannot: it has windows or recurrent layers, or attention of its own.
    """
    AttentionInterface.register(IMPLEMENTATION, _attend)
    AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    if kinds != {"full_attention"} or window:
        raise _refusal(model, "has layers that do not see their whole past")
    try:
        model.set_attn_implementation(IMPLEMENTATION)
        agrees = _agrees(model)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        raise _refusal(model, f"does not take attention from outside ({error})") from error
    if not agrees:
        raise _refusal(model, "computes attention of its own")


def _refusal(model: PreTrainedModel, why: str) -> ConfigError:
    kind = model.config.model_type
    return ConfigError(f"a {kind} model {why}; set share_prefixes = false to train its rows one by one")


@torch.no_grad()
def _agrees(model: PreTrainedModel) -> bool:
    """Whether a small tree gives the hidden states of its rows."""
    rows = [(3, 1, 4, 1, 5), (3, 1, 2, 6, 5, 3)]
    forest = Forest.of(rows)
    decoder = cast(nn.Module, model.get_decoder())  # type: ignore[no-untyped-call]
    ids_1T = torch.tensor([forest.token_ids], device=model.device)
    together_TE = forward_tree(decoder, ids_1T, PlacedTree.of(forest, model.device))[0]
    for row, places in zip(rows, forest.places, strict=True):
        alone = decoder(input_ids=torch.tensor([row], device=model.device), use_cache=False)
        if not torch.allclose(alone.last_hidden_state[0], together_TE[list(places)], atol=1e-3, rtol=1e-3):
            return False
    return True
