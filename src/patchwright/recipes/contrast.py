"""`patchwright compare --against`: runs of one kind against runs of another, such as two schedules.

Whether a difference is more than what differs from seed to seed anyway: each has its interval over the runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table

from patchwright.errors import ConfigError
from patchwright.metrics.mean import Mean, difference
from patchwright.recipes.compare import (
    COLOURS,
    Comparison,
    compare,
    curves,
    gained,
    markdown,
    section,
    tables,
)
from patchwright.recipes.plot import picture

__all__ = ["Contrast", "Row", "contrast", "contrast_report", "contrast_tables"]


class Row(NamedTuple):
    """A figure of both kinds. Example: `Row.of([0.3, 0.28], [0.26, 0.25])`"""

    these: Mean
    others: Mean
    apart: Mean
    """The difference."""

    @classmethod
    def of(cls, these: Sequence[float], others: Sequence[float]) -> Row:
        """Of two values or more of each kind."""
        return cls(Mean.of(these), Mean.of(others), difference(these, others))


@dataclass(frozen=True, kw_only=True, slots=True)
class Contrast:
    """Two kinds of runs. Made by `contrast`."""

    these: Comparison
    others: Comparison

    def rates(self, name: str) -> dict[str, Row]:
        """Pass@1 on a set, by policy."""
        here, there = self.these.evaluations[name], self.others.evaluations[name]
        return {
            policy: Row.of([one.mean for one in ones], [one.mean for one in there[policy]])
            for policy, ones in here.items()
            if policy in there
        }

    def gains(self, name: str) -> dict[str, Row]:
        """What each policy gained on a set over the one before it."""
        here, there = self.these.evaluations[name], self.others.evaluations[name]
        both = [policy for policy in here if policy in there]
        ours, theirs = (gained({policy: kind[policy] for policy in both}) for kind in (here, there))
        return {step: Row.of(values, theirs[step]) for step, values in ours.items()}

    @property
    def sets(self) -> list[str]:
        """Sets of tasks that both have a policy's evaluation of."""
        others = self.others.evaluations
        return [name for name, found in self.these.evaluations.items() if found.keys() & others.get(name, {})]

    def rounds(self) -> dict[str, list[Row]]:
        """Resolve rate of the attempts learned from, by stage, round after round, as far as all runs have."""
        return {
            stage: [
                Row.of(list(here), list(there))
                for here, there in zip(zip(*runs, strict=False), zip(*others, strict=False), strict=False)
            ]
            for stage, runs in self.these.rounds.items()
            if (others := self.others.rounds.get(stage))
        }

    def record(self) -> dict[str, Any]:
        """JSON values."""
        sets = {
            name: {
                "rate": {policy: row.apart.record() for policy, row in self.rates(name).items()},
                "gain": {step: row.apart.record() for step, row in self.gains(name).items()},
            }
            for name in self.sets
        }
        rounds = {stage: [row.apart.record() for row in rows] for stage, rows in self.rounds().items()}
        return {
            "these": self.these.record(),
            "against": self.others.record(),
            "difference": {"sets": sets, "rounds": rounds},
        }


def contrast(folders: Sequence[Path], against: Sequence[Path]) -> Contrast:
    """Read runs of two kinds.

    Raises ConfigError when a run is named twice, either kind has one alone, or they have no set of tasks in
    common.
    """
    if twice := set(map(Path.resolve, folders)) & set(map(Path.resolve, against)):
        raise ConfigError(f"{min(twice)} is of both kinds; name each run once")
    if min(len(folders), len(against)) < 2:
        raise ConfigError("a difference needs two runs of each kind; give more RUN, or more --against RUN")
    found = Contrast(these=compare(folders), others=compare(against))
    if not found.sets:
        here, there = ", ".join(found.these.evaluations), ", ".join(found.others.evaluations)
        raise ConfigError(
            f"the runs and those of --against have no set of tasks in common ({here}; {there}); compare runs "
            "of the same recipe"
        )
    return found


# --- for people -------------------------------------------------------------------------------

_HEADS = ("", "these", "against", "difference in points")


def _cells(found: Contrast) -> Iterator[tuple[str, list[list[str]]]]:
    """Title and lines of every table."""
    for name in found.sets:
        rates = [[policy, *_rate(row)] for policy, row in found.rates(name).items()]
        gains = [[step, *(one.points() for one in row)] for step, row in found.gains(name).items()]
        yield f"{name}: the difference", [*rates, *gains]
    for stage, rows in found.rounds().items():
        lines = [[str(number), *_rate(row)] for number, row in enumerate(rows, 1)]
        yield f"resolved in the rounds of {stage}: the difference", lines


def _rate(row: Row) -> list[str]:
    return [str(row.these.rate()), str(row.others.rate()), row.apart.points()]


def contrast_tables(found: Contrast) -> Iterator[Table]:
    """The tables of each kind, then one for each set of tasks and each stage of training."""
    yield from (*tables(found.these), *tables(found.others))
    for title, lines in _cells(found):
        table = Table(title=f"{title} [95 %]", box=box.SIMPLE_HEAD, pad_edge=False)
        for head in _HEADS:
            table.add_column(head, no_wrap=True)
        for line in lines:
            table.add_row(*line)
        yield table


def contrast_report(found: Contrast) -> dict[str, str]:
    """Files of a report, by name: all figures, the tables as text for a page, the curves of both kinds."""
    parts = [markdown(found.these), *(section(title, _HEADS, lines) for title, lines in _cells(found))]
    texts = {
        "compare.json": json.dumps(found.record(), indent=2) + "\n",
        "compare.md": "\n".join(parts),
    }
    drawn = [*curves(found.these, COLOURS), *curves(found.others, COLOURS[::-1], "against: ")]
    if drawn:
        title = "resolved in training, means with 95 % bands"
        texts["rounds.svg"] = picture(drawn, title=title, below="round")
    return texts
