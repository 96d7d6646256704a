"""A pair of releases in, tasks out: one cluster of the newer release's changes left out at a time.

The tests of a task are the test modules that the newer release brought or changed. What fails without the
cluster and passes with it is `fail_to_pass`, what passes either way `pass_to_pass`; both must be the same
in every one of `repeat` runs.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchwright.sandbox.base import SandboxBackend
from patchwright.store.files import attributed
from patchwright.tasks.mining.changelog import about, entry
from patchwright.tasks.mining.changes import Cluster, clusters, file_diff, without
from patchwright.tasks.mining.release import Release, is_prose
from patchwright.tasks.mining.trial import LIMITS, Outcome, Trial, pack
from patchwright.types import Task, Tests

__all__ = ["Miner", "Pair", "Settings"]

_MOST_CLUSTERS = 60
_MOST_FAILING = 50
"""A change that breaks more tests than this is no single fix."""
_FEW = 6
"""A cluster of at most so many hunks is tried without each."""
_SAID = 4
_MOST_SAID = 300


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """What tasks are wanted. Example: `Settings(repeat=3, max_lines=200)`"""

    repeat: int = 3
    """Runs of the tests on either side that must agree."""
    max_lines: int = 200
    """Most lines a gold patch may take and give, together."""
    workers: int = 2
    """Boxes at once."""
    image: str = "host"
    """What boxes are made of: it must have Python, pytest and what the library needs."""


@dataclass(frozen=True, slots=True)
class Pair:
    """What mining one pair of releases gave. Example: `Pair((), "no test module changed")`"""

    tasks: tuple[Task, ...]
    reason: str = ""
    """Why there are no tasks."""


@dataclass(frozen=True, slots=True)
class Miner:
    """Mines pairs of releases of one library; base trees are kept below `folder` as `archive/ID.tar.gz`.

    Example: `await Miner("boltons", backend, Path("out"), Settings())(older, newer)`
    """

    library: str
    backend: SandboxBackend
    folder: Path
    settings: Settings = field(default_factory=Settings)

    async def __call__(self, old: Release, new: Release) -> Pair:
        """The tasks of one pair. Raises SandboxError when there are no boxes to be had."""
        modules = _modules(old, new)
        if not modules:
            return Pair((), "no test module came or changed")
        found = [one for one in clusters(old.sources, new.sources) if _size(one) <= self.settings.max_lines]
        if not found:
            return Pair((), f"no change of behaviour in at most {self.settings.max_lines} lines")
        slots = asyncio.Semaphore(self.settings.workers)
        trial = Trial(new.path, self.backend, slots, self.settings.image)
        whole = await self._repeated(trial, _tree(old, new, {}, new.tests), modules, LIMITS.test_seconds)
        stable = frozenset.intersection(*(run.passed for run in whole))
        if not stable:
            return Pair((), f"no test passes on its own release: {_last_line(whole[0])}")
        bench = _Bench(self, old, new, trial, modules, stable, max(run.seconds for run in whole))
        told = await asyncio.gather(*(bench.examine(one) for one in found[:_MOST_CLUSTERS]))
        tasks = tuple(bench.task(one) for one in told if one is not None and not one.failing & bench.gone)
        return Pair(tasks, "" if tasks else f"no test tells {len(found)} changes from none")

    async def _repeated(
        self, trial: Trial, files: Mapping[str, bytes], modules: Sequence[str], seconds: float
    ) -> list[Outcome]:
        return await asyncio.gather(*(trial(files, modules, seconds) for _ in range(self.settings.repeat)))


@dataclass(frozen=True, slots=True)
class _Told:
    """A cluster, what fails without it, and a run that says so."""

    cluster: Cluster
    failing: frozenset[str]
    run: Outcome


@dataclass(frozen=True, slots=True)
class _Bench:
    """One pair, ready to try clusters."""

    miner: Miner
    old: Release
    new: Release
    trial: Trial
    modules: tuple[str, ...]
    stable: frozenset[str]
    """Tests that pass on the newer release, every time."""
    seconds: float
    gone: set[str] = field(default_factory=set)
    """Tests that some run does not name, though their file was collected: names that change by themselves, as
    those of parameters that come out of a set."""

    async def examine(self, cluster: Cluster) -> _Told | None:
        """A cluster that the tests tell from none in every run."""
        failing, run = await self._failing(cluster)
        if not failing:
            return None
        cluster = await self._reduced(cluster, failing)
        for _ in range(self.miner.settings.repeat - 1):
            again, run = await self._failing(cluster)
            if again != failing:
                return None
        return _Told(cluster, failing, run)

    async def _failing(self, cluster: Cluster) -> tuple[frozenset[str], Outcome]:
        """The tests that fail without a cluster; none when it is not just some of them that do."""
        changed = without(cluster, self.new.sources)
        patience = 10 + 5 * self.seconds  # code half gone may loop for ever
        run = await self.trial(_tree(self.old, self.new, changed, self.new.tests), self.modules, patience)
        missing = {test for test in self.stable if test not in run.statuses}
        self.gone.update(test for test in missing if test.partition("::")[0] not in run.statuses)
        failing = self.stable - run.passed - self.gone
        sound = len(failing) <= _MOST_FAILING and len(failing) < len(self.stable) and not run.timed_out
        return failing if sound else frozenset(), run

    async def _reduced(self, cluster: Cluster, failing: frozenset[str]) -> Cluster:
        """The cluster without hunks that change nothing about what fails, the longest tried first."""
        if len(cluster) > _FEW:
            return cluster
        for hunk in sorted(cluster, key=lambda one: -one.size):
            smaller = tuple(one for one in cluster if one is not hunk)
            if smaller and (await self._failing(smaller))[0] == failing:
                cluster = smaller
        return cluster

    def task(self, told: _Told) -> Task:
        """The task of a cluster; its repository is written."""
        cluster, failing = told.cluster, told.failing
        sources, changed = self.new.sources, without(cluster, self.new.sources)
        gold = "".join(file_diff(name, text, sources.get(name)) for name, text in sorted(changed.items()))
        name = f"{self.new.name}-{hashlib.sha256(gold.encode()).hexdigest()[:12]}"
        tests = Tests(
            command=self.trial.command(self.modules),
            fail_to_pass=tuple(sorted(failing)),
            pass_to_pass=tuple(sorted(self.stable - failing - self.gone)),
            patch=_tests_diff(self.old, self.new),
        )
        return Task(
            id=name,
            prompt=self._prompt(cluster, failing, told.run),
            tests=tests,
            image=self.trial.image,
            archive=str(self._kept(name, changed)),
            solution=gold,
            limits=LIMITS,
            meta=self._meta(cluster),
        )

    def _kept(self, name: str, changed: Mapping[str, str | None]) -> Path:
        """Write the base tree, with the tests of the older release, and say where."""
        file = self.miner.folder / "archive" / f"{name}.tar.gz"
        beside = file.with_name(f"{file.name}.tmp")
        with attributed("keep a task's repository", file):
            file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(pack(_tree(self.old, self.new, changed, self.old.tests), compress=True))
            beside.replace(file)
        return file

    def _prompt(self, cluster: Cluster, failing: frozenset[str], run: Outcome) -> str:
        fix = [line for hunk in cluster for line in (*hunk.after, *hunk.before)]
        words = {word for hunk in cluster for word in hunk.words | {hunk.place[1]}}
        words |= {test.rpartition("::")[2] for test in failing}
        told = about(entry(self.new.changelogs, self.new.version), words, fix)
        parts = [f"From the notes of the release that mended it:\n\n{told}\n"] if told else []
        parts.append(_symptoms(sorted(failing), run))
        parts.append(
            f"Tests run with `{self.trial.shown([m for m in self.modules if m in self.old.tests])}`."
        )
        return f"Something is wrong in {self.miner.library}.\n\n" + "\n".join(parts)

    def _meta(self, cluster: Cluster) -> dict[str, object]:
        return {
            "source": "mined",
            "library": self.miner.library,
            "older": self.old.version,
            "newer": self.new.version,
            "hunks": len(cluster),
            "lines": _size(cluster),
            "repeat": self.miner.settings.repeat,
        }


def _modules(old: Release, new: Release) -> tuple[str, ...]:
    """The test modules that came or changed; all of them when only what they share did."""
    changed = tuple(name for name in new.test_modules if old.tests.get(name) != new.tests[name])
    return changed or (new.test_modules if dict(old.tests) != dict(new.tests) else ())


def _tree(
    old: Release, new: Release, changed: Mapping[str, str | None], tests: Mapping[str, str]
) -> dict[str, bytes]:
    """The newer release with `changed` sources and these tests; what tells people of it is the older's."""
    prose = {name: data for name, data in old.others.items() if is_prose(name)}
    rest = {name: data for name, data in new.others.items() if not is_prose(name)}
    sources = {name: text for name, text in {**new.sources, **changed}.items() if text is not None}
    texts = {**old.changelogs, **sources, **tests}
    return {**prose, **rest, **{name: text.encode() for name, text in texts.items()}}


def _tests_diff(old: Release, new: Release) -> str:
    names = sorted({*old.tests, *new.tests})
    return "".join(file_diff(name, old.tests.get(name), new.tests.get(name)) for name in names)


def _size(cluster: Cluster) -> int:
    return sum(hunk.size for hunk in cluster)


def _symptoms(failing: Sequence[str], run: Outcome) -> str:
    """What the newer release's tests say, a few of them."""
    lines = [f"- {test}{_words(run, test)}" for test in failing[:_SAID]]
    if len(failing) > _SAID:
        lines.append(f"- and {len(failing) - _SAID} more")
    head = "This test, which you do not have, fails:" if len(failing) == 1 else "These tests, some of which "
    head += "" if len(failing) == 1 else "you do not have, fail:"
    return "\n".join([head, *lines]) + "\n"


def _words(run: Outcome, test: str) -> str:
    said = run.said.get(test) or run.said.get(test.partition("::")[0]) or ""
    line = " ".join("".join(c if c.isprintable() else " " for c in said).split())
    return f": {line[:_MOST_SAID]}" if line else ""


def _last_line(run: Outcome) -> str:
    last = run.tail.rpartition("\n")[2].strip() or "no output"
    return "".join(c for c in last if c.isprintable())[:_MOST_SAID]
