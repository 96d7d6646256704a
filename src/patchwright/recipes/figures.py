"""What attempts came to, in figures: rows of one attempt each, and what they add up to.

Void attempts are counted and left out of every rate.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.table import Table

from patchwright.metrics import Interval, interval, mean_pass_at_k
from patchwright.recipes.prices import Price, Tokens
from patchwright.types import Outcome, Trajectory

__all__ = ["Figures", "Row", "figures", "table", "tokens_of"]

_MOST_RUNS = 12
"""Runs with a line of their own in a table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One attempt. Example: `Row(task_id="toy-1", run=0, outcome=Outcome.RESOLVED, steps=7)`"""

    task_id: str
    run: int
    """Which of the attempts at its task."""
    outcome: Outcome
    exit: str = ""
    error: str = ""
    """Why it is void."""
    findings: tuple[str, ...] = ()
    patched: bool = False
    """Whether it left a patch."""
    steps: int = 0
    """Replies of the model."""
    tokens: Tokens = field(default_factory=Tokens)
    seconds: float = 0.0

    @classmethod
    def of(cls, trajectory: Trajectory, run: int) -> Row:
        """The row of a trajectory."""
        failure, grade = trajectory.failure, trajectory.grade
        return cls(
            task_id=trajectory.task_id,
            run=run,
            outcome=trajectory.outcome,
            exit=trajectory.exit,
            error=f"{failure.kind} ({failure.stage}): {failure.message}" if failure else "",
            findings=grade.findings if grade else (),
            patched=bool(trajectory.patch.strip()),
            steps=len(trajectory.turns) or len(_replies(trajectory)) or len(trajectory.steps),
            tokens=tokens_of(trajectory),
            seconds=trajectory.seconds,
        )


def tokens_of(trajectory: Trajectory) -> Tokens:
    """As recorded, or as the API counted them; without turns as the replies' `usage` has them, else zero."""
    total, length = Tokens(), dict[int | None, int]()
    for turn in trajectory.turns:
        if turn.usage:
            total += Tokens(input=turn.usage.prompt, cached=turn.usage.cached, output=turn.usage.completion)
            continue
        before = length.get(turn.parent, 0) if turn.parent is not None else 0
        asked = before + len(turn.prompt_ids)
        length[turn.id] = asked + len(turn.completion_ids)
        total += Tokens(input=asked, cached=before, output=len(turn.completion_ids))
    if not trajectory.turns:
        total = sum((_usage(message.get("usage")) for message in _replies(trajectory)), Tokens())
    return total


def _replies(trajectory: Trajectory) -> list[Mapping[str, Any]]:
    return [message for message in trajectory.messages if message.get("role") == "assistant"]


def _usage(usage: Any) -> Tokens:
    """What an endpoint says: somebody else's JSON."""
    said = usage if isinstance(usage, Mapping) else {}
    details = said.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    asked = _count(said.get("prompt_tokens"))
    return Tokens(input=asked, cached=min(cached, asked), output=_count(said.get("completion_tokens")))


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


# --- sums -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """What a set of attempts came to."""

    attempts: int
    resolved: int
    void: int
    rate: Interval | None
    """Resolved rate, clustered by task; None when no attempt has a verdict."""
    pass_at: Mapping[int, float]
    """Unbiased pass@k for the numbers of attempts that there are."""
    cheats: int
    """Attempts with a verdict that look like cheating."""
    empty: int
    """Attempts with a verdict and without a patch."""
    steps: float
    """Mean over attempts with a verdict, as are the seconds."""
    seconds: float
    tokens: Tokens
    """Of all attempts, void ones too."""
    cost: float | None
    """Of these, in the currency of the price table; None without one."""
    exits: Mapping[str, int]
    """How the agents stopped."""

    @property
    def verdicts(self) -> int:
        """Attempts with a verdict."""
        return self.attempts - self.void

    @property
    def void_rate(self) -> float:
        """Share of all attempts."""
        return self.void / self.attempts if self.attempts else 0.0

    @property
    def cheat_rate(self) -> float:
        """Share of attempts with a verdict."""
        return self.cheats / self.verdicts if self.verdicts else 0.0

    def record(self) -> dict[str, Any]:
        """JSON values."""
        plain = asdict(self)
        plain["pass_at"] = {str(k): value for k, value in self.pass_at.items()}
        return plain | {"void_rate": self.void_rate, "cheat_rate": self.cheat_rate}

    def stages(self, name: str) -> list[dict[str, Any]]:
        """As `patchwright show` reads evaluations in `summary.json`."""
        if self.rate is None:
            return []
        found = {"pass_at_1": self.rate.mean, "low": self.rate.low, "high": self.rate.high}
        more = {"pass_at_8": self.pass_at.get(8), "total": self.verdicts, "void": self.void}
        return [{"name": name, "resolved": self.resolved, **found, **more}]

    def line(self) -> str:
        """All in one line."""
        return "  ".join(f"{name} {cell}" for name, cell in zip(_COLUMNS, _cells(self), strict=True) if cell)


def figures(rows: Iterable[Row], price: Price | None = None) -> Figures:
    """Add up attempts. Example: 8 attempts at one task, 4 resolved: `figures(rows).rate.mean == 0.5`"""
    every = list(rows)
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for row in every:
        outcomes[row.task_id].append(row.outcome)
    judged = [row for row in every if row.outcome is not Outcome.VOID]
    tokens = sum((row.tokens for row in every), Tokens())
    return Figures(
        attempts=len(every),
        resolved=sum(row.outcome is Outcome.RESOLVED for row in every),
        void=len(every) - len(judged),
        rate=interval(outcomes) if judged else None,
        pass_at=_pass_at(outcomes),
        cheats=sum(bool(row.findings) for row in judged),
        empty=sum(not row.patched for row in judged),
        steps=_mean(judged, lambda row: row.steps),
        seconds=_mean(judged, lambda row: row.seconds),
        tokens=tokens,
        cost=price.of(tokens) if price else None,
        exits=dict(sorted(Counter(row.exit for row in every if row.exit).items())),
    )


def _pass_at(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[int, float]:
    most = max((len(row) for row in outcomes.values()), default=0)
    ks = sorted({1, *(k for k in (2, 4, 8, 16) if k <= most), most} - {0})
    found = {k: mean_pass_at_k(outcomes, k) for k in ks}
    return {k: value for k, value in found.items() if value is not None}


def _mean(rows: Sequence[Row], value: Callable[[Row], float]) -> float:
    return math.fsum(map(value, rows)) / len(rows) if rows else 0.0


# --- shown ------------------------------------------------------------------------------------

_COLUMNS = ("resolved", "rate, 95 %", "void", "cheat", "steps", "in", "out", "cost")
"""`in` and `out` are tokens."""


def table(rows: Sequence[Row], price: Price | None = None) -> Table:
    """A line for each run where there are several, and one for all."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("run", *_COLUMNS):
        shown.add_column(name, justify="right", no_wrap=True)
    runs = sorted({row.run for row in rows})
    for run in runs if 1 < len(runs) <= _MOST_RUNS else []:
        shown.add_row(str(run), *_cells(figures([row for row in rows if row.run == run], price)))
    shown.add_row("all", *_cells(figures(rows, price)), style="bold")
    return shown


def _cells(found: Figures) -> tuple[str, ...]:
    tokens = found.tokens
    return (
        f"{found.resolved}/{found.verdicts}",
        _percent(found.rate) if found.rate else "-",
        f"{found.void_rate:.1%}",
        f"{found.cheat_rate:.1%}",
        f"{found.steps:.1f}",
        _short(tokens.input),
        _short(tokens.output),
        "" if found.cost is None else f"{found.cost:.2f}",
    )


def _percent(rate: Interval) -> str:
    """Example: `75.0% [70.1, 79.9]`"""
    return f"{rate.mean:.1%} [{100 * rate.low:.1f}, {100 * rate.high:.1f}]"


def _short(count: int) -> str:
    """Example: `_short(1_234_567) == "1.2M"`"""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if count >= size:
            return f"{count / size:.1f}{unit}"
    return str(count)
