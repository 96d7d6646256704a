"""What a set of graded predictions came to: the counts of SWE-bench's run report, and ours beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from patchwright.metrics import interval
from patchwright.recipes.cheats import cheat_rate
from patchwright.types import GradeState, Outcome

__all__ = ["Ending", "summary"]

_ERRORS = (GradeState.APPLY_FAILED, GradeState.TESTS_TIMEOUT)
"""Endings for which the official harness writes no report and counts an error."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How one prediction ended. Example: `Ending("toy-1", GradeState.RESOLVED)`"""

    instance_id: str
    state: GradeState
    reason: str = ""
    findings: tuple[str, ...] = ()
    fault: str = ""
    """What may be wrong with a log that could not be read, in the official word."""
    environment: bool = False
    """Whether the fault is one no patch can have caused."""
    void: bool = False

    @property
    def group(self) -> str:
        """`resolved`, `unresolved`, `empty_patch` or `error`, as the official run report sorts it."""
        if self.void or self.state in _ERRORS:
            return "error"
        if self.state in (GradeState.RESOLVED, GradeState.EMPTY_PATCH):
            return self.state.value
        return "unresolved"

    @property
    def outcome(self) -> Outcome:
        """For the rate: void is left out of it."""
        if self.void:
            return Outcome.VOID
        return Outcome.RESOLVED if self.state is GradeState.RESOLVED else Outcome.UNRESOLVED


def summary(
    endings: Sequence[Ending], tasks: Iterable[str], *, seconds: float, trust: Mapping[str, int]
) -> dict[str, Any]:
    """The content of `summary.json`.

    Instance counts and id lists are those of the official run report; of several predictions the best one
    counts (resolved, unresolved, empty, error). `resolved_rate` is over predictions with a verdict; `trust`
    says how many of the tasks `tasks validate` found `valid`, `broken` and so on.
    """
    groups = _by_group(endings)
    ids = {name: sorted(task for task, group in groups.items() if group == name) for name in _ORDER}
    faults = {end.instance_id: end for end in endings if end.fault and groups[end.instance_id] != "resolved"}
    return {
        **_official(set(tasks), ids),
        "infra_failure_ids": sorted(name for name, end in faults.items() if end.environment),
        "ambiguous_failure_ids": sorted(name for name, end in faults.items() if not end.environment),
        "failure_reasons": {name: faults[name].fault for name in sorted(faults)},
        "schema_version": 2,
        **_ours(endings),
        "trust": dict(trust),
        "seconds": round(seconds, 3),
    }


_ORDER = ("resolved", "unresolved", "empty_patch", "error")


def _by_group(endings: Sequence[Ending]) -> dict[str, str]:
    found: dict[str, list[str]] = defaultdict(list)
    for ending in endings:
        found[ending.instance_id].append(ending.group)
    return {task: min(groups, key=_ORDER.index) for task, groups in found.items()}


def _official(tasks: set[str], ids: dict[str, list[str]]) -> dict[str, Any]:
    completed = sorted(ids["resolved"] + ids["unresolved"])
    submitted = sorted(task for group in ids.values() for task in group)
    return {
        "total_instances": len(tasks),
        "submitted_instances": len(submitted),
        "completed_instances": len(completed),
        **{f"{name}_instances": len(ids[name]) for name in _ORDER},
        "completed_ids": completed,
        "incomplete_ids": sorted(tasks - set(submitted)),
        "submitted_ids": submitted,
        **{f"{name}_ids": ids[name] for name in _ORDER},
    }


def _ours(endings: Sequence[Ending]) -> dict[str, Any]:
    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    for ending in endings:
        outcomes[ending.instance_id].append(ending.outcome)
    void = [end for end in endings if end.void]
    rated = len(void) < len(endings)
    return {
        "predictions": len(endings),
        "states": dict(sorted(Counter(end.state.value for end in endings).items())),
        "resolved_rate": asdict(interval(outcomes)) if rated else None,
        "void": {
            state.value: {end.instance_id: end.reason for end in void if end.state is state}
            for state in dict.fromkeys(end.state for end in void)
        },
        "cheat_rate": cheat_rate(end.findings for end in endings if not end.void),
        "findings": {end.instance_id: list(end.findings) for end in endings if end.findings},
    }
