"""One step of the local engine: the live sequences, and which of their tokens are computed together.

Shapes: N packed tokens, H query heads, K key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from patchwright.engine.kv import Prefilling, Slab, Span
from patchwright.engine.sampler import Draw
from patchwright.types import Completion, Finish, Sampling

__all__ = ["Live", "Plan"]


@dataclass(slots=True, eq=False)
class Live:
    """One request from admission to its end."""

    key: int
    prompt: list[int]
    sampling: Sampling
    streaming: bool
    draw: Draw
    limit: int
    """Most tokens it may sample."""
    kv_version: int = 0
    span: Span | None = None
    """Its keys and values while the prompt is computed, then None."""
    capacity: int = 0
    """Its slab while it decodes."""
    row: int = 0
    cached: int = 0
    out: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    @property
    def filled(self) -> int:
        """Tokens whose keys and values its row holds: all but the one sampled last."""
        return len(self.prompt) + len(self.out) - 1

    def completion(self, finish: Finish, version: int) -> Completion:
        """What the request gets. `version` serves when no token was sampled."""
        differ = len(set(self.versions)) > 1
        return Completion(
            token_ids=tuple(self.out),
            logprobs=tuple(self.logprobs),
            finish=finish,
            version=self.versions[-1] if self.versions else version,
            versions=tuple(self.versions) if differ else (),
            cached=self.cached,
        )


class Plan:
    """What one step computes: a token of every decoding sequence, then prompt tokens within a budget.

    Packed order: the slabs' rows, slab after slab, then the prompts' pieces.
    """

    def __init__(
        self,
        slabs: dict[int, Slab],
        rows: dict[int, list[Live]],
        prefilling: Sequence[Live],
        budget: int,
    ) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.outputs: list[int] = []
        """Packed positions whose logits are wanted, one for each of `sampled`."""
        self.sampled: list[Live] = []
        self.completed: list[Live] = []
        """Those of `sampled` whose prompt ends in this step."""
        self._groups: list[tuple[int, int, Slab]] = []
        self._pieces: list[Prefilling] = []
        for capacity, sequences in rows.items():
            if sequences:
                self._add_slab(slabs[capacity], sequences)
        for sequence in prefilling:
            budget -= self._add_piece(sequence, budget)

    def _add_slab(self, slab: Slab, sequences: Sequence[Live]) -> None:
        first = len(self.ids)
        filled = [sequence.filled for sequence in sequences]
        slab.prepare(filled)
        self.ids += [sequence.out[-1] for sequence in sequences]
        self.positions += filled
        self.sampled += sequences
        self.outputs += range(first, len(self.ids))
        self._groups.append((first, len(self.ids), slab))

    def _add_piece(self, sequence: Live, budget: int) -> int:
        span = sequence.span
        assert span is not None
        start, first = len(span.ids), len(self.ids)
        piece = sequence.prompt[start : start + budget]
        if not piece:
            return 0
        self.ids += piece
        self.positions += range(start, start + len(piece))
        span.ids += piece
        self._pieces.append(Prefilling(span, start, first, len(self.ids)))
        if len(span.ids) == len(sequence.prompt):
            self.outputs.append(len(self.ids) - 1)
            self.sampled.append(sequence)
            self.completed.append(sequence)
        return len(piece)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of the whole step, [N, H * D]; the model's `Attend`."""
        parts = [slab.attend(layer, q[a:b], k[a:b], v[a:b]) for a, b, slab in self._groups]
        for piece in self._pieces:
            a, b = piece.first, piece.last
            parts.append(piece.attend(layer, q[a:b], k[a:b], v[a:b]))
        return parts[0] if len(parts) == 1 else torch.cat(parts)
