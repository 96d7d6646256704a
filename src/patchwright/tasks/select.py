"""Which tasks: filtered, split in two, and held against a benchmark that must not be trained on.

Pure, above task files. Where a task comes from (`Task.meta`) is read here and nowhere else in the line.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from patchwright.errors import ConfigError
from patchwright.types import Task

__all__ = [
    "Filter",
    "Overlap",
    "changed_lines",
    "difficulty_of",
    "filter_tasks",
    "overlap",
    "refuse_ids",
    "refuse_overlap",
    "refuse_published",
    "repo_of",
    "split_tasks",
]

_NUMBERED = re.compile(r"(?P<owner>[^\s/]+?)__(?P<repo>.+?)-\w+")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")
_SHOWN = 5
_PUBLISHED = re.compile(r"swe-bench(-(lite|live|multilingual|multimodal|pro|verified))?|terminal-bench(-.*)?")
"""Test sets that models are compared by, as the name of a task's source, in small letters with hyphens."""
_FOR_TRAINING = ("train", "dev")
"""Splits of theirs that models are not compared by."""


def repo_of(task: Task) -> str:
    """`OWNER/NAME` of a task's repository: as its row says, else read from its id, else empty."""
    row = _row(task)
    for value in (row.get("repo"), row.get("repo_name"), task.meta.get("repo")):
        if isinstance(value, str) and value:
            return value
    found = _NUMBERED.fullmatch(task.id)
    return f"{found['owner']}/{found['repo']}" if found else ""


def difficulty_of(task: Task) -> str:
    """What its data set says of a task's difficulty (`<15 min fix`, `medium`), else empty."""
    row = _row(task)
    places = [row, row.get("meta"), _at(row.get("config"), "metadata"), row.get("config"), task.meta]
    for place in places:
        value = place.get("difficulty") if isinstance(place, Mapping) else None
        if isinstance(value, str | int | float) and value != "":
            return str(value)
    return ""


def _row(task: Task) -> Mapping[str, Any]:
    row = task.meta.get("row")
    return row if isinstance(row, Mapping) else {}


def _at(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None


# --- filter -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class Filter:
    """Which tasks to keep: all that is given must hold. Example: `Filter(repos=("django/*",))`"""

    ids: tuple[str, ...] = ()
    """Globs of ids, whatever the case."""
    repos: tuple[str, ...] = ()
    """Globs of repositories, whatever the case."""
    difficulties: tuple[str, ...] = ()
    """As the data set writes them, whatever the case."""
    trust: tuple[str, ...] = ()
    """`valid`, `flaky`, `hackable`, `broken`, or `none` for tasks that were never validated."""
    max_prompt: int = 0
    """Most characters the issue may have; 0 is any."""
    max_solution: int = 0
    """Most lines the reference patch may add and remove; 0 is any."""
    max_tests: int = 0
    """Most tests a task may name; 0 is any."""
    gradable: bool = False
    """Leave out tasks without a test to mend."""


def filter_tasks(tasks: Iterable[Task], wanted: Filter) -> list[Task]:
    """The tasks that fit, in order."""
    return [task for task in tasks if _fits(task, wanted)]


def _fits(task: Task, wanted: Filter) -> bool:
    named = (
        (wanted.ids, task.id),
        (wanted.repos, repo_of(task)),
        (wanted.difficulties, difficulty_of(task)),
        (wanted.trust, task.trust or "none"),
    )
    tests = len(task.tests.fail_to_pass) + len(task.tests.pass_to_pass)
    sizes = (
        (wanted.max_prompt, len(task.prompt)),
        (wanted.max_solution, changed_lines(task.solution)),
        (wanted.max_tests, tests),
    )
    return (
        all(not globs or _matches(text, globs) for globs, text in named)
        and all(not most or size <= most for most, size in sizes)
        and (not wanted.gradable or bool(task.tests.fail_to_pass))
    )


def _matches(text: str, globs: Sequence[str]) -> bool:
    """A glob is tried as the text itself first: `<15 min fix` and `a[b]` are names, too."""
    low = text.lower()
    return any(low == glob.lower() or fnmatch.fnmatchcase(low, glob.lower()) for glob in globs)


def changed_lines(diff: str) -> int:
    """Lines a diff adds and removes."""
    lines = diff.split("\n")
    return sum(line[:1] in ("+", "-") and not line.startswith(("+++ ", "--- ")) for line in lines)


# --- split ------------------------------------------------------------------------------------


def split_tasks(
    tasks: Sequence[Task], share: float, *, seed: int = 0, by_repo: bool = False
) -> tuple[list[Task], list[Task]]:
    """Tasks to train on, and about a `share` of them held out, each in the order of the file.

    The order in which tasks are held out depends on seed and id alone (`by_repo`: seed and repository, held
    out whole, so that no repository is on both sides). Raises ConfigError when one side would be empty.
    """
    groups: dict[str, list[Task]] = {}
    for task in tasks:
        groups.setdefault(repo_of(task) if by_repo else task.id, []).append(task)
    held: set[str] = set()
    for key in sorted(groups, key=lambda key: hashlib.sha256(f"{seed}/{key}".encode()).digest()):
        size = sum(len(groups[key]) for key in held)
        if abs(size + len(groups[key]) - share * len(tasks)) < abs(size - share * len(tasks)):
            held.add(key)
    out = {task.id for key in held for task in groups[key]}
    if not 0 < len(out) < len(tasks):
        unit = f"{len(groups)} repositories" if by_repo else f"{len(tasks)} tasks"
        raise ConfigError(f"holding out {share:g} of {unit} leaves one side empty; give another share")
    return [task for task in tasks if task.id not in out], [task for task in tasks if task.id in out]


# --- overlap ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overlap:
    """A task that is also a benchmark's."""

    train: str
    bench: str
    why: str
    """`same id`, `same commit of its repository` or `same issue text`."""


def overlap(train: Iterable[Task], bench: Iterable[Task]) -> list[Overlap]:
    """The tasks of `train` that are in `bench`: by id whatever the case, by repository and base commit, or by
    issue text whatever its spacing and case. Each is named once, for the first reason that holds."""
    known: dict[Hashable, str] = {}
    for task in bench:
        for mark in _marks(task):
            known.setdefault(mark, task.id)
    found = []
    for task in train:
        hit = next((mark for mark in _marks(task) if mark in known), None)
        if hit is not None:
            found.append(Overlap(task.id, known[hit], str(hit[0])))
    return found


def refuse_overlap(train: Iterable[Task], bench: Iterable[Task], *, allow: bool = False) -> list[Overlap]:
    """What overlaps. Raises ConfigError when anything does, unless that is allowed."""
    found = overlap(train, bench)
    if found and not allow:
        some = ", ".join(f"{one.train} ({one.why})" for one in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"{len(found)} training tasks are in the benchmark: {some}{more}; leave them out with "
            "`patchwright tasks filter --without`, or set line.allow_overlap to train on them all the same"
        )
    return found


def refuse_ids(ids: Iterable[str], bench: Iterable[Task], *, allow: bool = False) -> None:
    """As `refuse_overlap` for trajectories, whose tasks are known by id only."""
    bench_ids = {task.id.lower() for task in bench}
    found = sorted({name for name in ids if name.lower() in bench_ids})
    if found and not allow:
        raise ConfigError(
            f"{len(found)} of the tasks trained on are in the benchmark: {', '.join(found[:_SHOWN])}; train "
            "on other trajectories, or set line.allow_overlap to train on them all the same"
        )


def refuse_published(train: Iterable[Task], *, allow: bool = False) -> None:
    """Raises ConfigError for tasks of a published test set, known by where they were imported from, unless
    they are allowed."""
    found = [task for task in train if _is_published(task)]
    if found and not allow:
        sets = ", ".join(dict.fromkeys(str(task.meta["source"]) for task in found))
        some = ", ".join(task.id for task in found[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise ConfigError(
            f"{len(found)} training tasks are of a published test set, {sets}: {some}{more}; train on "
            "others, name what stays out in line.benchmark, or set line.allow_overlap to train on them all "
            "the same"
        )


def _is_published(task: Task) -> bool:
    name = str(task.meta.get("source", "")).rpartition("/")[2].lower().replace("_", "-")
    return bool(_PUBLISHED.fullmatch(name)) and task.meta.get("split") not in _FOR_TRAINING


def _marks(task: Task) -> list[tuple[str, ...]]:
    """What a task is known by; an unset thing is no mark."""
    row = _row(task)
    commit = next((str(c) for c in (row.get("base_commit"), task.base_commit) if _is_commit(c)), "")
    text = " ".join(task.prompt.lower().split())
    marks: list[tuple[str, ...]] = [("same id", task.id.lower())]
    if commit and repo_of(task):
        marks.append(("same commit of its repository", repo_of(task).lower(), commit.lower()))
    if text:
        marks.append(("same issue text", hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()))
    return marks


def _is_commit(value: Any) -> bool:
    return isinstance(value, str) and bool(_COMMIT.fullmatch(value.lower()))
