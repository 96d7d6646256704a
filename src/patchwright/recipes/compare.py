"""`patchwright compare`: several runs side by side, such as the seeds of one experiment, and their mean.

An evaluation's interval is over its tasks; the mean over runs has one over the runs, which also holds what
differs from seed to seed of training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from patchwright.errors import ConfigError
from patchwright.metrics import Metrics
from patchwright.metrics.mean import Mean
from patchwright.recipes.plot import Banded, Curve, picture
from patchwright.store import Run, files

__all__ = [
    "COLOURS",
    "Comparison",
    "Evaluation",
    "compare",
    "curves",
    "evaluations",
    "gained",
    "markdown",
    "report",
    "section",
    "tables",
    "write_report",
]

COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd")
"""Of the curves of a picture, in turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """One evaluation of one run. Example: `Evaluation(mean=0.3, low=0.2, high=0.4, attempts=480, void=0)`"""

    mean: float
    """Pass@1 over tasks."""
    low: float
    high: float
    attempts: int
    void: int
    pass_at_8: float | None = None

    def __str__(self) -> str:
        return f"{self.mean:.1%} [{self.low:.1%}, {self.high:.1%}]"


def gained(policies: Mapping[str, Sequence[Evaluation]]) -> dict[str, list[float]]:
    """What each policy gained over the one before it, for each run."""
    return {
        f"{after} - {before}": [b.mean - a.mean for a, b in zip(old, new, strict=True)]
        for (before, old), (after, new) in pairwise(policies.items())
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """What several runs came to."""

    runs: tuple[str, ...]
    evaluations: Mapping[str, Mapping[str, Sequence[Evaluation]]]
    """By set of tasks and by policy (`init`, `sft`, `rl`), one for each run; only what all runs have."""
    rounds: Mapping[str, Sequence[Sequence[float]]]
    """By stage of training on rewards, the resolve rate of each of its rounds, for each run."""

    def means(self, name: str) -> dict[str, Mean]:
        """Pass@1 of each policy on a set, over the runs."""
        return {
            policy: Mean.of([one.mean for one in found]).rate()
            for policy, found in self.evaluations[name].items()
        }

    def gains(self, name: str) -> dict[str, Mean]:
        """What each policy gained on a set over the one before it, paired by run."""
        return {step: Mean.of(values) for step, values in gained(self.evaluations[name]).items()}

    def record(self) -> dict[str, Any]:
        """JSON values."""
        sets = {
            name: {
                "runs": {policy: [asdict(one) for one in found] for policy, found in policies.items()},
                "mean": {policy: mean.record() for policy, mean in self.means(name).items()},
                "gain": {step: mean.record() for step, mean in self.gains(name).items()},
            }
            for name, policies in self.evaluations.items()
        }
        return {"runs": list(self.runs), "sets": sets, "rounds": dict(self.rounds)}


def compare(folders: Sequence[Path]) -> Comparison:
    """Read the runs. Raises ConfigError when they have no evaluation in common."""
    if len(set(map(Path.resolve, folders))) < len(folders):
        raise ConfigError("a run is named twice; name each once")
    names, found, rounds = [], [], []
    for folder in folders:
        with Run.open(folder) as run:
            names.append(folder.name)
            found.append(_by_policy(run))
            rounds.append(_rounds(run))
    shared = [key for key in found[0] if all(key in other for other in found)]
    if not shared:
        has = "; ".join(f"{name}: {_listed(one)}" for name, one in zip(names, found, strict=True))
        raise ConfigError(f"the runs have no evaluation in common ({has}); compare runs of the same recipe")
    sets: dict[str, dict[str, list[Evaluation]]] = {}
    for policy, name in shared:
        sets.setdefault(name, {})[policy] = [one[policy, name] for one in found]
    stages = [stage for stage in rounds[0] if all(stage in other for other in rounds)]
    return Comparison(
        runs=tuple(names),
        evaluations=sets,
        rounds={stage: [one[stage] for one in rounds] for stage in stages},
    )


def _listed(found: Mapping[tuple[str, str], Evaluation]) -> str:
    return ", ".join(f"{policy} on {name}" for policy, name in found) or "none"


def evaluations(run: Run) -> Iterator[tuple[tuple[str, str], Mapping[str, Any]]]:
    """What the run's evaluations came to, in the order they were made, by (stage, set of tasks).

    From the journal, so that an unfinished run has those it made; else from the summary, where a stage has
    one set without a name.
    """
    journal = [
        ((mark.stage, name), found)
        for mark in run.marks()
        for name, found in (mark.info.get("sets") or {}).items()
    ]
    yield from journal
    for stage in [] if journal else (run.summary() or {}).get("stages", []):
        if "pass_at_1" in stage:
            yield (str(stage.get("name", "")), ""), stage


def _by_policy(run: Run) -> dict[tuple[str, str], Evaluation]:
    """By (policy, set)."""
    return {
        (stage.removeprefix("eval-"), name or "tasks"): _evaluation(found)
        for (stage, name), found in evaluations(run)
    }


def _evaluation(found: Mapping[str, Any]) -> Evaluation:
    return Evaluation(
        mean=found["pass_at_1"],
        low=found["low"],
        high=found["high"],
        attempts=found["total"],
        void=found.get("void", 0),
        pass_at_8=found.get("pass_at_8"),
    )


def _rounds(run: Run) -> dict[str, list[float]]:
    rates: dict[str, dict[int, float]] = {}
    for row in Metrics(run.path / "metrics.jsonl").read():
        if isinstance(rate := row.get("resolve_rate"), int | float):
            rates.setdefault(str(row["stage"]), {})[int(row["step"])] = float(rate)
    return {stage: [steps[step] for step in sorted(steps)] for stage, steps in rates.items()}


# --- for people -------------------------------------------------------------------------------


def _rates(found: Comparison, name: str) -> list[list[str]]:
    """A line for each run, then the mean over them: pass@1 of every policy."""
    policies = found.evaluations[name]
    lines = [
        [run, *(str(ones[number]) for ones in policies.values())] for number, run in enumerate(found.runs)
    ]
    return [*lines, ["mean", *map(str, found.means(name).values())]]


def _more(found: Comparison, name: str) -> tuple[list[str], list[list[str]]]:
    """Heads and cells of what a page has room for: gains, pass@8, void attempts."""
    policies, gains = found.evaluations[name], found.gains(name)
    eight = {
        policy: [one.pass_at_8 for one in ones if one.pass_at_8 is not None]
        for policy, ones in policies.items()
    }
    eight = {policy: chances for policy, chances in eight.items() if len(chances) == len(found.runs)}
    lines = []
    for number in range(len(found.runs)):
        ones = [one[number] for one in policies.values()]
        steps = [f"{100 * (after.mean - before.mean):+.1f}" for before, after in pairwise(ones)]
        chances = [f"{values[number]:.1%}" for values in eight.values()]
        lines.append([*steps, *chances, str(sum(one.void for one in ones))])
    means = [f"{Mean.of(values).mean:.1%}" for values in eight.values()]
    void = sum(one.void for ones in policies.values() for one in ones)
    heads = [*gains, *(f"pass@8 {policy}" for policy in eight), "void"]
    return heads, [*lines, [*(gain.points() for gain in gains.values()), *means, str(void)]]


def tables(found: Comparison) -> Iterator[Table]:
    """A table for each set of tasks; the gains, in percentage points, stand below."""
    for name, policies in found.evaluations.items():
        gains = ", ".join(f"{step} {gain.points()}" for step, gain in found.gains(name).items())
        title, caption = f"{name}: pass@1 [95 %]", f"mean gain in points: {gains}" if gains else None
        table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False)
        for head in ("run", *policies):
            table.add_column(head, no_wrap=True)
        for line in _rates(found, name):
            table.add_row(*line)
        yield table


def markdown(found: Comparison) -> str:
    """The same tables as text for a page."""
    parts = []
    for name in found.evaluations:
        more, cells = _more(found, name)
        heads = ["run", *found.evaluations[name], *more]
        lines = [[*line, *rest] for line, rest in zip(_rates(found, name), cells, strict=True)]
        parts.append(section(name, heads, lines))
    return "\n".join(parts)


def section(title: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table under its title, as text for a page."""
    rows = [heads, ["---"] * len(heads), *lines]
    return f"### {title}\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def curves(found: Comparison, colours: Sequence[str], prefix: str = "") -> list[Curve]:
    """Resolve rate of the attempts learned from over the rounds, mean over the runs: a curve a stage."""
    drawn = []
    for colour, (stage, runs) in zip(colours, found.rounds.items(), strict=False):
        rounds = range(min(map(len, runs)))
        points: dict[int, Banded] = {
            step + 1: Mean.of([rates[step] for rates in runs]).rate() for step in rounds
        }
        drawn.append(Curve(name=f"{prefix}{stage}", points=points, colour=colour))
    return drawn


def report(found: Comparison) -> dict[str, str]:
    """Files of a report, by name: all figures, the tables as text for a page, the curves if there are any."""
    texts = {"compare.json": json.dumps(found.record(), indent=2) + "\n", "compare.md": markdown(found)}
    if drawn := curves(found, COLOURS):
        title = f"resolved in training, mean of {len(found.runs)} runs with 95 % band"
        texts["rounds.svg"] = picture(drawn, title=title, below="round")
    return texts


def write_report(texts: Mapping[str, str], folder: Path) -> list[Path]:
    """Write the files of a report; returns their paths. Raises StoreError when the disk refuses."""
    with files.attributed("write the report", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            files.write_text(folder / name, text)
    return [folder / name for name in texts]
