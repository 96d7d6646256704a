"""Rejection sampling: which attempts of some runs become rows, and why the others do not. Pure, two passes: a
light `Candidate` of every attempt first, so that runs of any size fit."""

from __future__ import annotations

import hashlib
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field

from patchwright.types import Outcome, Task

__all__ = ["Benchmark", "Candidate", "Chosen", "Selection", "balance", "select"]

_LEAST_ISSUE = 40
"""Characters an issue has at least to be looked for in a conversation: shorter ones are found by chance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """What is wanted. Example: `Selection(per_task=2, max_tokens=32_768)`"""

    per_task: int = 0
    """Most attempts at one task, those of fewest turns first; 0 keeps all. (SWE-Gym found 2 best for SFT.)"""
    max_tokens: int = 0
    """Longest attempt in tokens; 0 sets no limit."""
    suspects: bool = False
    """Keep attempts with integrity findings: what looks like cheating."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """What choosing needs to know of an attempt."""

    key: Hashable
    """Tells it apart from all others: run and id."""
    task_id: str
    outcome: Outcome
    turns: int
    tokens: int = 0
    said: str = ""
    """Digest of all the model said: equal for equal attempts."""
    suspect: bool = False
    asked: str = ""
    """What the conversation says before the model speaks, as `Benchmark` compares it."""
    unfit: str = ""
    """Why no row can be made of it."""


class Benchmark:
    """What must not be trained on: tasks known by id, and by the text of their issue."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        tasks = list(tasks)
        self._ids = {task.id.lower() for task in tasks}
        issues = {self.folded(task.prompt) for task in tasks}
        self._issues = [issue for issue in issues if len(issue) >= _LEAST_ISSUE]

    @staticmethod
    def folded(text: str) -> str:
        """Text without case and spacing."""
        return " ".join(text.lower().split())

    def has(self, candidate: Candidate) -> bool:
        """Whether an attempt is at one of its tasks: the same id, or the issue stands in what was asked."""
        known = candidate.task_id.lower() in self._ids
        return known or any(issue in candidate.asked for issue in self._issues)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The outcome of choosing."""

    kept: list[Candidate]
    left_out: Counter[str] = field(default_factory=Counter)
    """Why -> how many."""


def select(
    candidates: Sequence[Candidate],
    wanted: Selection,
    *,
    outcomes: Iterable[Outcome] = (Outcome.RESOLVED,),
    benchmark: Benchmark | None = None,
) -> Chosen:
    """The attempts to keep, in the order given.

    Of equal attempts at a task the first stays; of those left the shortest in turns, then in tokens, then in
    the order given, up to `per_task`.
    """
    accepted = set(outcomes)
    tests: list[tuple[str, Callable[[Candidate], bool]]] = [
        ("void", lambda c: c.outcome is Outcome.VOID),
        ("not resolved", lambda c: c.outcome not in accepted),
        ("in the benchmark", lambda c: benchmark is not None and benchmark.has(c)),
        ("with integrity findings", lambda c: c.suspect and not wanted.suspects),
        ("too long", lambda c: 0 < wanted.max_tokens < c.tokens),
    ]
    left_out: Counter[str] = Counter()
    kept: dict[Hashable, Candidate] = {}
    for candidate in candidates:
        why = next((name for name, test in tests if test(candidate)), candidate.unfit)
        same = (candidate.task_id, candidate.said)
        if not why and same in kept:
            why = "the same as another"
        if why:
            left_out[why] += 1
        else:
            kept[same] = candidate
    return _capped(list(kept.values()), wanted.per_task, left_out)


def _capped(kept: list[Candidate], cap: int, left_out: Counter[str]) -> Chosen:
    if not cap:
        return Chosen(kept, left_out)
    by_task: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in kept:
        by_task[candidate.task_id].append(candidate)
    shortest = (sorted(group, key=lambda c: (c.turns, c.tokens))[:cap] for group in by_task.values())
    names = {candidate.key for group in shortest for candidate in group}
    chosen = [candidate for candidate in kept if candidate.key in names]
    if len(chosen) < len(kept):
        left_out["past the cap of its task"] += len(kept) - len(chosen)
    return Chosen(chosen, left_out)


def balance(chosen: Chosen, *, negatives: float = 1.0, seed: int = 42) -> Chosen:
    """As many good attempts as bad ones (`negatives` bad ones to each good one), by leaving out from the side
    that has too many; which ones depends on the seed and their keys alone."""
    sides = {
        side: [c for c in chosen.kept if (c.outcome is Outcome.RESOLVED) is side] for side in (True, False)
    }
    good = min(len(sides[True]), int(len(sides[False]) / negatives)) if negatives else len(sides[True])
    counts = {True: good, False: round(good * negatives)}
    names = {c.key for side, group in sides.items() for c in _drawn(group, counts[side], seed)}
    kept = [candidate for candidate in chosen.kept if candidate.key in names]
    left_out = Counter(chosen.left_out)
    if len(kept) < len(chosen.kept):
        left_out["to balance"] += len(chosen.kept) - len(kept)
    return Chosen(kept, left_out)


def _drawn(group: Sequence[Candidate], count: int, seed: int) -> list[Candidate]:
    ordered = sorted(group, key=lambda c: hashlib.sha256(repr(c.key).encode()).digest())
    return random.Random(seed).sample(ordered, min(count, len(ordered)))
