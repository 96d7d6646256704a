"""Keys and values of the local engine: where they live while a sequence runs, and after.

A sequence's prompt is computed into a `Span` of its own. Decoding, it sits in a row of a `Slab` of sequences
of similar length, so that one attention call serves the whole slab with little padding. Finished, it is a
`Span` again, kept in a `PrefixCache` for the next turn of the conversation. A copy between the two costs
about what one decoding step reads anyway.

Shapes: L layers, K key/value heads, C capacity in tokens, D head dimension, H query heads, R rows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

__all__ = ["Layout", "Prefilling", "PrefixCache", "Slab", "Span", "capacity_for"]

_BLOCK = 16
"""Tokens per entry of the prefix index."""
_SMALLEST = 64
_GROWTH = 1.25
"""Ratio of neighbouring slab capacities: less pads less, more groups better."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes shared by everything that holds keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    def empty(self, *sizes: int) -> Tensor:
        """An uninitialised tensor of this format, for what is written before it is read."""
        return torch.empty(*sizes, dtype=self.dtype, device=self.device)

    def zeros(self, *sizes: int) -> Tensor:
        """Zeros of this format, for what attention reads behind a mask: a masked NaN is still a NaN."""
        return torch.zeros(*sizes, dtype=self.dtype, device=self.device)

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


class Span:
    """One sequence's keys and values, k and v [L, K, C, D], of which `ids` are filled."""

    __slots__ = ("ids", "k", "v")

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.k = layout.empty(layout.layers, layout.kv_heads, capacity, layout.head_dim)
        self.v = torch.empty_like(self.k)
        self.ids: list[int] = []

    def copy_from(self, other: Span, tokens: int) -> None:
        """Begin with another span's first tokens."""
        self.k[:, :, :tokens] = other.k[:, :, :tokens]
        self.v[:, :, :tokens] = other.v[:, :, :tokens]
        self.ids = other.ids[:tokens]


class Prefilling:
    """Part of a prompt in this step: packed tokens [first, last) go to `span` at `start`."""

    __slots__ = ("first", "last", "mask", "span", "start")

    def __init__(self, span: Span, start: int, first: int, last: int) -> None:
        self.span, self.start, self.first, self.last = span, start, first, last
        self.mask: Tensor | None = None
        if start:
            self.mask = self._causal_mask()

    def _causal_mask(self) -> Tensor:
        count, device = self.last - self.first, self.span.k.device
        keys = torch.arange(self.start + count, device=device)
        queries = torch.arange(self.start, self.start + count, device=device)
        mask = self.span.k.new_zeros(count, self.start + count)
        return mask.masked_fill_(keys[None] > queries[:, None], -torch.inf)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q [n, H, D] over what the span holds and k, v [n, K, D]; returns [n, H * D]."""
        end = self.start + len(q)
        keys, values = self.span.k[layer, :, :end], self.span.v[layer, :, :end]
        keys[:, self.start :] = k.transpose(0, 1)
        values[:, self.start :] = v.transpose(0, 1)
        out = F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            keys[None],
            values[None],
            attn_mask=self.mask,
            is_causal=self.mask is None,
            enable_gqa=q.shape[1] != k.shape[1],
        )
        return out[0].transpose(0, 1).flatten(1)


def capacity_for(tokens: int) -> int:
    """Capacity of the slab for sequences of this many tokens."""
    capacity = _SMALLEST
    while capacity < tokens:
        capacity = -(-int(capacity * _GROWTH) // 32) * 32
    return capacity


class Slab:
    """Rows of decoding sequences, k and v [L, R, K, C, D]; the first `len(self)` rows are in use."""

    def __init__(self, layout: Layout, capacity: int) -> None:
        self.capacity = capacity
        self._layout = layout
        self._used = 0
        self._k = layout.zeros(layout.layers, 0, layout.kv_heads, capacity, layout.head_dim)
        self._v = torch.zeros_like(self._k)
        self._rows = self._index = torch.empty(0, dtype=torch.long)
        self._mask = torch.empty(0)
        self._longest = 0

    def __len__(self) -> int:
        return self._used

    def join(self, k: Tensor, v: Tensor) -> int:
        """Copy keys and values [L, K, n, D] into a new row and return its number."""
        if self._used == self._k.shape[1]:
            self._k, self._v = self._grown(self._k), self._grown(self._v)
        row, self._used = self._used, self._used + 1
        self._k[:, row, :, : k.shape[2]] = k
        self._v[:, row, :, : v.shape[2]] = v
        return row

    def _grown(self, old: Tensor) -> Tensor:
        new = self._layout.zeros(old.shape[0], max(4, 2 * old.shape[1]), *old.shape[2:])
        new[:, : old.shape[1]] = old
        return new

    def row(self, row: int, tokens: int) -> tuple[Tensor, Tensor]:
        """Views of a row's keys and values, [L, K, tokens, D]."""
        return self._k[:, row, :, :tokens], self._v[:, row, :, :tokens]

    def leave(self, row: int, last_tokens: int) -> None:
        """Free a row by moving the last one, of `last_tokens` tokens, into it."""
        self._used -= 1
        if row != self._used:
            self._k[:, row, :, :last_tokens] = self._k[:, self._used, :, :last_tokens]
            self._v[:, row, :, :last_tokens] = self._v[:, self._used, :, :last_tokens]

    def erase(self, row: int) -> None:
        """Forget a row's content, which is not numbers and would spoil whoever has the row next."""
        self._k[:, row] = 0
        self._v[:, row] = 0

    def prepare(self, filled: Sequence[int]) -> None:
        """Begin a step in which every row gains a token; `filled` counts each row's tokens before it."""
        device = self._layout.device
        self._index = torch.tensor(filled, device=device)
        self._longest = max(filled) + 1
        hidden = torch.arange(self._longest, device=device)[None] > self._index[:, None]
        zeros = torch.zeros(hidden.shape, dtype=self._layout.dtype, device=device)
        self._mask = zeros.masked_fill_(hidden, -torch.inf)[:, None, None]
        self._rows = torch.arange(self._used, device=device)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q [R, H, D] over every row with k, v [R, K, D] appended; returns [R, H * D]."""
        rows, kv_heads = k.shape[0], k.shape[1]
        keys, values = self._k[layer, :rows], self._v[layer, :rows]
        keys[self._rows, :, self._index] = k
        values[self._rows, :, self._index] = v
        out = F.scaled_dot_product_attention(
            q.reshape(rows, kv_heads, -1, q.shape[2]),  # the queries that share a head are its positions
            keys[:, :, : self._longest],
            values[:, :, : self._longest],
            attn_mask=self._mask,
        )
        return out.reshape(rows, -1)


class PrefixCache:
    """Finished spans by content, least recently used out first, bounded in bytes.

    Every span is of the current weights: `clear` when they change.
    """

    def __init__(self, layout: Layout, limit_bytes: int) -> None:
        self._layout = layout
        self._limit = limit_bytes
        self._bytes = 0
        self._spans: OrderedDict[int, Span] = OrderedDict()
        self._index: dict[int, Span] = {}

    def __len__(self) -> int:
        return len(self._spans)

    def clear(self) -> None:
        """Forget everything."""
        self._spans.clear()
        self._index.clear()
        self._bytes = 0

    def match(self, ids: Sequence[int]) -> tuple[Span | None, int]:
        """The span that begins as `ids` does for the most tokens, and how many. Blocks of 16 find it."""
        best = next((self._index[key] for key in reversed(_block_keys(ids)) if key in self._index), None)
        if best is None:
            return None, 0
        self._spans.move_to_end(id(best))
        return best, _common(best.ids, ids)

    def takes(self, tokens: int) -> bool:
        """Whether a span of this many tokens would be kept."""
        return tokens >= _BLOCK and tokens * self._layout.token_bytes <= self._limit

    def add(self, span: Span) -> None:
        """Keep a span; one that it extends is dropped, since it answers every match of that one."""
        if not self.takes(len(span.ids)):
            return
        older, common = self.match(span.ids)
        if older is not None and common == len(span.ids):
            return
        if older is not None and common == len(older.ids):
            self._drop(older)
        self._spans[id(span)] = span
        self._index.update(dict.fromkeys(_block_keys(span.ids), span))
        self._bytes += self._size(span)
        while self._bytes > self._limit:
            self._drop(next(iter(self._spans.values())))

    def _size(self, span: Span) -> int:
        return len(span.ids) * self._layout.token_bytes

    def _drop(self, span: Span) -> None:
        del self._spans[id(span)]
        self._bytes -= self._size(span)
        for key in _block_keys(span.ids):
            if self._index.get(key) is span:
                del self._index[key]


def _block_keys(ids: Sequence[int]) -> list[int]:
    """One key for each whole block: a hash of everything up to its end."""
    keys, key = [], 0
    for start in range(0, len(ids) - _BLOCK + 1, _BLOCK):
        key = hash((key, *ids[start : start + _BLOCK]))
        keys.append(key)
    return keys


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common prefix."""
    limit = min(len(a), len(b))
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), limit)
