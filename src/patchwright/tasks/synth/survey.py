"""What a library's tests do on its good code: which pass every time, how long, and what each touches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from patchwright.errors import ConfigError
from patchwright.tasks.library import Library
from patchwright.tasks.synth.bench import Bench, Ran, brief, lacking

_SECONDS = 580.0
"""A suite that takes longer counts as far as it got."""
_MOST_TESTS = 100
"""Tests of one function that are run to see whether a bug in it is caught."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function that some tests touch. Example: `Target("src/lib/core.py", "chunked", ("t.py::a",))`"""

    file: str
    function: str
    """`name`, or `Class.name`."""
    tests: tuple[str, ...]
    """Node ids, those that touch the fewest functions first."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The library's tests, once for all bugs."""

    seconds: Mapping[str, float]
    """Node id -> seconds, of the tests that passed every time."""
    targets: tuple[Target, ...]
    remarks: tuple[str, ...] = ()
    """What a person should know: test files that could not be collected, flaky tests."""


async def survey(bench: Bench, repeat: int) -> Survey:
    """Run the whole suite once traced and `repeat` times as it is.

    Raises ConfigError when pytest finds no test that passes, or no function that one touches.
    """
    traced = await bench.run({}, seconds=_SECONDS, traced=True)
    runs = [await bench.run({}, seconds=_SECONDS) for _ in range(repeat)]
    steady = {test for test in runs[0].passed if all(test in run.passed for run in runs) and _nameable(test)}
    if not steady:
        raise ConfigError(f"pytest finds no test in {bench.name} that passes ({_why(runs[0])})")
    found = Survey(
        {test: max(run.passed[test] for run in runs) for test in sorted(steady)},
        _targets(bench, traced, steady),
        tuple(_remarks(runs, steady)),
    )
    if not found.targets:
        raise ConfigError(f"no test of {bench.name} touches a function of it; take another library")
    return found


def _nameable(test: str) -> bool:
    """Whether a log names it unmistakably: a summary line ends the name at ` - `."""
    return " - " not in test and test.isprintable() and "::" in test


def _targets(bench: Bench, traced: Ran, steady: set[str]) -> tuple[Target, ...]:
    library = bench.library
    entered: dict[tuple[str, str], list[str]] = {}
    breadth: dict[str, int] = {}
    for test in sorted(steady & traced.touched.keys()):
        places = {(f, name) for f, line in traced.touched[test] if (name := _function(library, f, line))}
        breadth[test] = len(places)
        for place in places:
            entered.setdefault(place, []).append(test)
    return tuple(
        Target(file, name, tuple(sorted(tests, key=lambda test: (breadth[test], test))[:_MOST_TESTS]))
        for (file, name), tests in sorted(entered.items())
    )


def _function(library: Library, file: str, line: int) -> str | None:
    return library.function_at(file, line) if file in library.sources else None


def _remarks(runs: list[Ran], steady: set[str]) -> list[str]:
    first = runs[0]
    remarks = []
    if first.uncollected:
        remarks.append(f"{len(first.uncollected)} test files could not be collected")
    remarks += [f"{count} of them lack the module `{name}`" for name, count in sorted(lacking(first).items())]
    unsteady = {test for run in runs for test in run.passed} - steady
    if unsteady:
        remarks.append(f"{len(unsteady)} tests do not pass every time, and count for nothing")
    if any(run.done.timed_out for run in runs):
        remarks.append(f"the suite takes more than {_SECONDS:.0f} s: only the tests up to there count")
    return remarks


def _why(ran: Ran) -> str:
    missing = ", ".join(f"`{name}`" for name in sorted(lacking(ran)))
    if missing:
        return f"its tests need {missing}, which the box lacks; install it beside patchwright"
    if ran.failed:
        test, failure = next(iter(ran.failed.items()))
        return f"{test} says: {brief(failure.message)}; take another library"
    last = (ran.done.output.strip() or "no output").splitlines()[-1]
    return f"{brief(last)}; take another library"
