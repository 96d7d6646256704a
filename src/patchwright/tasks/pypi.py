"""Tasks from a real library: one line of one of its functions broken, its own tests the judge.

    sdist from the user's index (`sdist`) -> functions and the tests that mention them (`library`)
    -> one-line bugs (`mutate`) -> the library's tests in boxes -> Task

The library is hostile code like any other: it is read here, and run in boxes only.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shlex
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from patchwright.errors import ConfigError
from patchwright.sandbox.base import BoxSpec, SandboxBackend
from patchwright.tasks.library import Library, Target, read_library
from patchwright.tasks.mutate import Mutant, line_diff, mutants, pick
from patchwright.tasks.repository import repository_archive
from patchwright.tasks.sdist import Requirement, fetch_sdist
from patchwright.types import Exec, Limits, Task, Tests

_LIMITS = Limits(exec_seconds=60, test_seconds=120)
_RUNNERS = ("pytest", "python -m pytest")
"""The second is for libraries that pytest itself imports: a warm pytest has the machine's copy loaded."""
_OPTIONS = "-q -rA --tb=no -p no:cacheprovider -o addopts="
_PROBE = "test_where_it_is_imported_from.py"
_COLLECTED = "/tmp/collected"
_AT_ONCE = 4
_ROUNDS = 8
"""Bugs tried per function, at most."""
_MAX_FAILING = 10
"""A bug that breaks more tests than this is not a subtle one."""
_MAX_SAID = 300
_RAISED = re.compile(r"E +\w+(Error|Exception)\b")
_STATUS = re.compile(r"^(PASSED|FAILED|ERROR) (\S.*?)(?: - (.*))?$", re.MULTILINE)


async def from_pypi(
    requirement: str, count: int, *, seed: int, backend: SandboxBackend, folder: Path
) -> list[Task]:
    """Up to `count` tasks from a library given as `NAME==VERSION`; at most one per function and round.

    The good source is kept at `folder/archive/NAME-VERSION`, to which the tasks refer. The same seed gives
    the same tasks where the library's tests are not random themselves. Raises ConfigError when the library
    cannot be had, has no tests, cannot be imported in a box, or no bug is caught by its tests; SandboxError
    as the backend does.
    """
    pinned = Requirement.parse(requirement)
    root = await asyncio.to_thread(fetch_sdist, pinned, folder / "archive")
    bench = await _open_bench(read_library(root), pinned, backend)
    found: list[Task] = []
    async for task in _tasks(bench, Random(seed)):
        found.append(task)
        if len(found) >= count:
            break
    if not found:
        raise ConfigError(f"no bug in {pinned} is caught by its own tests; take another library")
    return found


# --- the library in boxes ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Bench:
    """Runs the library's tests in fresh boxes."""

    library: Library
    requirement: Requirement
    backend: SandboxBackend
    runner: str = _RUNNERS[0]
    targets: list[Target] = field(default_factory=list)

    def command(self, arguments: str) -> str:
        """A pytest command in which the library's own source is what is imported."""
        return f"PYTHONPATH={self.library.path} {self.runner} {arguments}"

    async def run(
        self, files: Mapping[str, str], command: str, seconds: float, output: str = ""
    ) -> tuple[Exec, bytes]:
        """Run a command with `files` laid over the library; also the content of the file `output`."""
        task = Task(
            id="probe", prompt="", tests=Tests(command="", fail_to_pass=()), archive=str(self.library.root)
        )
        archive = repository_archive(replace(task, files=files))
        box = await self.backend.open(BoxSpec(archive=archive, limits=_LIMITS, workdir=task.workdir))
        try:
            done = await box.exec(command, timeout=seconds, env={"COLUMNS": "400"})
            return done, await box.read(output) if output else b""
        except FileNotFoundError:
            return done, b""
        finally:
            await box.close()


async def _open_bench(library: Library, requirement: Requirement, backend: SandboxBackend) -> _Bench:
    """Find a runner that imports the library's own source, and the tests there are."""
    said = ""
    for runner in _RUNNERS:
        bench = _Bench(library, requirement, backend, runner)
        done, _ = await bench.run(_probe(library), bench.command(f"-s {_OPTIONS} --tb=line {_PROBE}"), 60)
        if "imported here: True" in done.output:
            return replace(bench, targets=library.targets(await _collect(bench)))
        said = next((line for line in done.output.splitlines() if _RAISED.match(line)), done.output)
    raise ConfigError(
        f"{requirement} cannot be imported in a box ({_said(said)}); take a library in pure Python whose "
        "dependencies are installed beside patchwright"
    )


def _probe(library: Library) -> dict[str, str]:
    lines = [
        f"import os, {library.package} as library",
        "def test_it():",
        "    place = os.path.realpath(library.__file__)",
        "    print('imported here:', place.startswith(os.path.realpath(os.getcwd())))",
    ]
    return {_PROBE: "\n".join(lines) + "\n"}


async def _collect(bench: _Bench) -> list[str]:
    """Node ids, without parameters, of all tests that can be collected."""
    files = " ".join(shlex.quote(name) for name in bench.library.test_files)
    arguments = f"--collect-only --continue-on-collection-errors {_OPTIONS} {files}"
    done, output = await bench.run({}, f"{bench.command(arguments)} > {_COLLECTED}", 120, _COLLECTED)
    lines = output.decode(errors="replace").splitlines()
    found = list(dict.fromkeys(line.partition("[")[0] for line in lines if "::" in line))
    if not found:
        last = _said((done.output.strip() or "no output").splitlines()[-1])
        raise ConfigError(f"pytest finds no test in {bench.requirement} ({last}); take another library")
    return found


# --- bugs -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Baseline:
    """What the tests of a target do on the good code."""

    target: Target
    command: str
    passed: tuple[str, ...]
    seconds: float


async def _tasks(bench: _Bench, rng: Random) -> AsyncIterator[Task]:
    """Tasks in a fixed order: bugs of all functions in turn, a few boxes at a time."""
    targets = rng.sample(bench.targets, len(bench.targets))
    baselines: dict[Target, _Baseline] = {}
    candidates = list(_candidates(bench.library, targets, rng))
    for start in range(0, len(candidates), _AT_ONCE):
        batch = candidates[start : start + _AT_ONCE]
        new = [target for target in dict.fromkeys(t for t, _ in batch) if target not in baselines]
        ran = await asyncio.gather(*(_baseline(bench, target) for target in new))
        baselines.update(zip(new, ran, strict=True))
        made = await asyncio.gather(*(_try(bench, baselines[target], mutant) for target, mutant in batch))
        for task in made:
            if task is not None:
                yield task


def _candidates(library: Library, targets: Sequence[Target], rng: Random) -> Iterator[tuple[Target, Mutant]]:
    """One bug of every function, then another of every function, and so on."""
    found = {target: mutants(library.sources[target.file], target.function) for target in targets}
    for _ in range(_ROUNDS):
        for target in targets:
            if found[target]:
                mutant = pick(found[target], rng)
                found[target] = [other for other in found[target] if other.source != mutant.source]
                yield target, mutant


async def _baseline(bench: _Bench, target: Target) -> _Baseline:
    command = bench.command(f"{_OPTIONS} {' '.join(map(shlex.quote, target.tests))}")
    done, _ = await bench.run({}, command, _LIMITS.test_seconds)
    statuses = _statuses(done.output)
    passed = tuple(test for test, (status, _) in statuses.items() if status == "PASSED")
    return _Baseline(target, command, passed, done.seconds)


async def _try(bench: _Bench, baseline: _Baseline, mutant: Mutant) -> Task | None:
    """The task of a mutant that some tests catch by failing while all others still pass."""
    if len(baseline.passed) < 2:
        return None
    patience = 5 + 5 * baseline.seconds  # a bug may loop for ever
    done, _ = await bench.run({baseline.target.file: mutant.source}, baseline.command, patience)
    statuses = _statuses(done.output)
    failing = [test for test in baseline.passed if statuses.get(test, ("", ""))[0] == "FAILED"]
    passing = [test for test in baseline.passed if statuses.get(test, ("", ""))[0] == "PASSED"]
    whole = len(failing) + len(passing) == len(baseline.passed) and not done.timed_out
    if not whole or not passing or not 1 <= len(failing) <= _MAX_FAILING:
        return None
    return _task(bench, baseline, mutant, failing, passing, statuses[failing[0]][1])


def _statuses(log: str) -> dict[str, tuple[str, str]]:
    """Test -> status and what was said of it, from the short summary; a later line undoes no failure."""
    found: dict[str, tuple[str, str]] = {}
    for status, test, said in _STATUS.findall(log):
        if found.get(test, ("PASSED", ""))[0] == "PASSED":
            found[test] = status, said
    return found


# --- tasks ------------------------------------------------------------------------------------


def _task(
    bench: _Bench, baseline: _Baseline, mutant: Mutant, failing: list[str], passing: list[str], said: str
) -> Task:
    target, library = baseline.target, bench.library
    good = library.sources[target.file]
    digest = hashlib.sha256(mutant.source.encode()).hexdigest()[:12]
    return Task(
        id=f"{bench.requirement}-{target.function}-{digest}",
        prompt=f"{_issue(target, failing, said)}\nRun its tests with `{_shown_command(bench, failing)}`.",
        tests=Tests(
            command=baseline.command,
            fail_to_pass=tuple(failing),
            pass_to_pass=tuple(passing),
            files=_restored(library, target),
        ),
        archive=str(library.root),
        files={target.file: mutant.source},
        solution=line_diff(target.file, mutant.source, mutant.line, good.split("\n")[mutant.line - 1]),
        limits=_LIMITS,
        meta={
            "source": "pypi",
            "library": bench.requirement.name,
            "version": bench.requirement.version,
            "function": target.function,
            "bug": mutant.kind,
        },
    )


def _restored(library: Library, target: Target) -> dict[str, str]:
    """The test files of a target, and every conftest file: what could be tampered with."""
    used = {test.partition("::")[0] for test in target.tests}
    return {
        name: text
        for name, text in library.test_files.items()
        if name in used or Path(name).name == "conftest.py"
    }


def _issue(target: Target, failing: Sequence[str], said: str) -> str:
    file, _, test = failing[0].partition("::")
    saw = f" with: {_said(said)}" if said.strip() else "."
    more = f"\n{len(failing) - 1} more of its tests fail." if len(failing) > 1 else ""
    return (
        f"`{target.function}` in {target.file} does not do what it should.\n"
        f"{test.replace('::', '.')} in {file} fails{saw}{more}"
    )


def _shown_command(bench: _Bench, failing: Sequence[str]) -> str:
    """What a person would type: the library is not installed in the box."""
    return bench.command(f"-q {shlex.quote(failing[0].partition('::')[0])}")


def _said(text: str) -> str:
    """What a test said, on one line, printable and short: it comes out of a box."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= _MAX_SAID else f"{line[: _MAX_SAID - 3]}..."
