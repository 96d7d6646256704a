"""Made-up attempts of the kinds the trainer meets, for `bench train`. No model, no torch.

linear      every turn extends the last
head_tail   when a request grows too long, the middle is left out, as the agent's `head_tail` policy does it:
            the opening and the newest turns stay and the next turns extend those
group       linear attempts at one task: they share the opening
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from patchwright.train.samples import samples
from patchwright.types import Sample, Trajectory, Turn

__all__ = ["KINDS", "Talks", "attempts_of", "merged", "per_turn"]

KINDS = ("linear", "head_tail", "group")
_FILLED = 0.8
"""Of the budget, what a cut leaves."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Talks:
    """Sizes of made-up attempts, in tokens.

    Example: `Talks(opening=300, turns=10, observation=50, reply=30)` makes attempts of 1,100 tokens.
    """

    opening: int
    """System message and issue."""
    turns: int
    observation: int
    """What comes before each reply but the first."""
    reply: int
    """What the model samples in a turn."""
    attempts: int = 8
    words: int = 250
    """Ids are drawn from 3 to this."""

    @classmethod
    def of_length(cls, length: int, attempts: int = 8) -> Talks:
        """Attempts of about `length` tokens: a quarter the opening, then 16 turns, sampled to a third."""
        each = max(6, length * 3 // 4 // 16)
        return cls(
            opening=max(1, length - 16 * each),
            turns=16,
            reply=each // 3,
            observation=each - each // 3,
            attempts=attempts,
        )

    @property
    def length(self) -> int:
        """Tokens of an attempt when nothing is left out."""
        return self.opening + self.turns * (self.observation + self.reply)


def attempts_of(kind: str, talks: Talks, seed: int = 0) -> list[Trajectory]:
    """`talks.attempts` attempts of one of `KINDS`."""
    draw = random.Random(f"{kind}/{seed}")
    opening = _words(draw, talks.opening, talks)
    made = []
    for index in range(talks.attempts):
        start = opening if kind == "group" else _words(draw, talks.opening, talks)
        budget = talks.length // 2 if kind == "head_tail" else talks.length
        made.append(_attempt(f"{kind}-{index}", start, budget, talks, draw))
    return made


def _words(draw: random.Random, count: int, talks: Talks) -> tuple[int, ...]:
    return tuple(draw.randrange(3, talks.words) for _ in range(count))


def _attempt(
    name: str, opening: tuple[int, ...], budget: int, talks: Talks, draw: random.Random
) -> Trajectory:
    turns: list[Turn] = []
    exchanges: list[tuple[int, ...]] = []
    shown = len(opening)
    for index in range(talks.turns):
        asked = _words(draw, talks.observation, talks)
        reply = _words(draw, talks.reply, talks)
        parent, prompt = index - 1 if index else None, asked if index else opening + asked
        if shown + len(asked + reply) > budget:
            parent, prompt = None, opening + _newest(exchanges, int(budget * _FILLED) - len(opening)) + asked
        shown = len(prompt + reply) + (shown if parent is not None else 0)
        exchanges.append(asked + reply)
        turns.append(
            Turn(
                id=index,
                parent=parent,
                prompt_ids=prompt,
                completion_ids=reply,
                logprobs=(-5.0,) * len(reply),
            )
        )
    return Trajectory(id=name, task_id="bench", turns=tuple(turns))


def _newest(exchanges: Sequence[tuple[int, ...]], room: int) -> tuple[int, ...]:
    """The last exchanges that fit."""
    kept: tuple[int, ...] = ()
    for exchange in reversed(exchanges):
        if len(kept) + len(exchange) > room:
            break
        kept = exchange + kept
    return kept


def merged(attempts: Sequence[Trajectory]) -> list[Sample]:
    """The trainer's rows, advantages of +1 and -1 in turn."""
    return [row for index, one in enumerate(attempts) for row in samples(one, advantage=(-1.0) ** index)]


def per_turn(attempts: Sequence[Trajectory]) -> list[Sample]:
    """One row per turn, as trainers without merging have it: all that came before, and the reply."""
    return [
        row
        for index, one in enumerate(attempts)
        for turn in one.turns
        for row in samples(_only(one, turn), advantage=(-1.0) ** index)
    ]


def _only(attempt: Trajectory, turn: Turn) -> Trajectory:
    """The attempt with nothing to train but one turn."""
    return replace(attempt, turns=tuple(replace(other, train=other is turn) for other in attempt.turns))
