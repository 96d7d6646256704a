"""`patchwright tasks mine`: tasks from the releases of a library on the package index.

Every pair of releases is a step: what it gave is written beside the output at once, and the same command goes
on where it was stopped. A task is kept when the grader itself says so: resolved by its solution, unresolved
without, as often as the runs were repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

from packaging.version import InvalidVersion, Version

from patchwright.errors import ConfigError, InfraError
from patchwright.grade.tests import Grader
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.recipes.progress import View
from patchwright.sandbox.base import SandboxBackend
from patchwright.store.files import attributed, write_text
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.mining.mine import Miner, Pair, Settings
from patchwright.tasks.mining.release import Release, read_release
from patchwright.tasks.sdist import Requirement, fetch_sdist, releases
from patchwright.types import Task, TestStatus

__all__ = ["PREFIX", "mine", "select"]

PREFIX = "pypi:"
_LATEST = 6
"""Releases that are looked at when nobody says which."""


async def mine(
    source: str, versions: str, limit: int, settings: Settings, sandbox: SandboxConfig, out: Path, view: View
) -> int:
    """Mine `pypi:NAME` and write the tasks to `out`; how many there are.

    `versions` is `A..B` (either may be left out; empty: the latest few). Newest first, until there are
    `limit` tasks (0: all). Raises ConfigError when the library or its versions cannot be had, or nothing was
    found.
    """
    if not source.startswith(PREFIX) or "=" in source:
        raise ConfigError(f"{source!r} is not pypi:NAME; write for example `pypi:boltons`")
    known = await asyncio.to_thread(releases, source.removeprefix(PREFIX))
    pairs = list(pairwise(select(known, versions)))[::-1]
    found: list[Task] = []
    reasons: list[str] = []
    async with open_boxes(sandbox) as backend:
        shaft = _Shaft(known[0].name, backend, out, settings)
        with view.stage("mine", total=len(pairs)) as stage:
            for older, newer in pairs:
                pair = await shaft.dig(older, newer)
                found += pair.tasks
                reasons += [f"{older.version}..{newer.version}: {pair.reason}"] if pair.reason else []
                stage.note(f"{len(found)} tasks")
                stage.advance()
                if limit and len(found) >= limit:
                    break
    for reason in reasons:
        view.say(f"nothing in {reason}")
    if not found:
        raise ConfigError(f"{source} gave no task ({reasons[0] if reasons else 'no pair of releases'})")
    dump_tasks(out, found[: limit or None])
    return len(found[: limit or None])


def select(known: Sequence[Requirement], versions: str) -> list[Requirement]:
    """The releases from A to B, both included, of `A..B`. Raises ConfigError when they are less than two."""
    low, dots, high = versions.partition("..")
    if versions and not dots:
        raise ConfigError(f"--versions {versions!r} is not A..B; write for example `1.0..1.4`, `1.0..`")
    bounds = (_version(low), _version(high))
    chosen = [one for one in known if _between(Version(one.version), *bounds)]
    chosen = chosen if versions else chosen[-_LATEST:]
    if len(chosen) < 2:
        there = ", ".join(one.version for one in known[-8:])
        raise ConfigError(
            f"{known[0].name} has {len(chosen)} source release of {versions or 'any'}, where two are needed; "
            f"the latest are {there}"
        )
    return chosen


def _version(text: str) -> Version | None:
    try:
        return Version(text) if text.strip() else None
    except InvalidVersion:
        raise ConfigError(f"--versions: {text!r} is not a version; write for example `1.0..1.4`") from None


def _between(one: Version, low: Version | None, high: Version | None) -> bool:
    return (low is None or low <= one) and (high is None or one <= high)


class _Shaft:
    """Digs pairs of releases of one library, and keeps what each gave."""

    def __init__(self, library: str, backend: SandboxBackend, out: Path, settings: Settings) -> None:
        self._backend = backend
        self._folder = out.parent
        self._parts = out.with_name(f"{out.name}.parts")
        self._settings = settings
        self._miner = Miner(library, backend, out.parent, settings)

    async def dig(self, older: Requirement, newer: Requirement) -> Pair:
        """What a pair gives: from its part file, if it was dug before with the same settings."""
        part = self._part(older, newer)
        if part.exists():
            return _read(part)
        try:
            old, new = await asyncio.gather(self._release(older), self._release(newer))
            pair = await self._miner(old, new)
        except ConfigError as error:  # one release that cannot be used is no reason to stop
            pair = Pair((), str(error))
        pair = await self._confirmed(pair)
        with attributed("keep what was mined", part):
            part.parent.mkdir(parents=True, exist_ok=True)
            if pair.tasks:
                dump_tasks(part, pair.tasks)
            else:
                write_text(part, f"# {pair.reason}\n")
        return pair

    async def _release(self, requirement: Requirement) -> Release:
        root = await asyncio.to_thread(fetch_sdist, requirement, self._parts / "sdists")
        return await asyncio.to_thread(read_release, root)

    async def _confirmed(self, pair: Pair) -> Pair:
        slots = asyncio.Semaphore(self._settings.workers)

        async def one(task: Task) -> str:
            async with slots:
                return await _doubt(task, self._backend)

        doubts = await asyncio.gather(*map(one, pair.tasks))
        tasks = tuple(task for task, doubt in zip(pair.tasks, doubts, strict=True) if not doubt)
        dropped = (
            "" if tasks or not pair.tasks else f"the grader does not confirm what was found: {doubts[0]}"
        )
        return Pair(tasks, pair.reason or dropped)

    def _part(self, older: Requirement, newer: Requirement) -> Path:
        settings = {**asdict(self._settings), "workers": 0}
        digest = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:8]
        return self._parts / f"{newer.name}-{older.version}..{newer.version}-{digest}.jsonl"


def _read(part: Path) -> Pair:
    text = part.read_text(encoding="utf-8")
    if text.startswith("#"):
        return Pair((), text.removeprefix("#").strip())
    return Pair(tuple(load_tasks(part)))


async def _doubt(task: Task, backend: SandboxBackend) -> str:
    """Empty when the grader resolves the solution and says of no patch that every test to mend fails; else
    what it says."""
    grader = Grader(backend)
    try:
        gold, empty = await grader(task, task.solution), await grader(task, "")
    except InfraError as error:
        return " ".join(str(error).split())
    if not gold.resolved:
        return f"with the fix, {gold.state}: {gold.reason}"
    mended = [test for test in task.tests.fail_to_pass if empty.tests.get(test) is TestStatus.PASSED]
    return f"without the fix, {mended[0]} passes" if mended else "resolved without the fix" * empty.resolved
