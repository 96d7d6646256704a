"""Bug-repair tasks made by the thousand: a small function, one line of it wrong, tests that show it.

    draw a function (`compose`, `handwritten`, `harder`) -> break a line (`mutate`) -> run its example calls
    on both versions (`plain`) -> keep what fails some calls and does not run for ever -> Task

The sets are a function of the counts and the seed. No buggy source is in two sets, and the evaluation sets
hold only signatures and kinds, and so good sources, that no training set has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from pydantic import NonNegativeInt

from patchwright.config import Config
from patchwright.tasks.compose import composed
from patchwright.tasks.function import Arguments, Function
from patchwright.tasks.handwritten import TRAINING
from patchwright.tasks.harder import HARDER
from patchwright.tasks.mutation import Mutant, line_diff, mutants, pick
from patchwright.tasks.plain import Outcome, Program
from patchwright.types import Limits, Task, Tests

COMMAND = "pytest -q -rA --tb=no test_mod.py"
"""Prints one status line per test and nothing else of length."""

_INI = "[pytest]\naddopts = --disable-plugin-autoload -p no:cacheprovider\n"
"""The tests need no plugin; looking for the machine's would take a third of each run."""

_COMPOSED_SHARE = 0.85
_MAX_ISSUE, _MAX_MODULE, _MAX_TESTS = 100, 420, 600  # characters; keeps an attempt within a small context
_MAX_CASES = 3
_LIMITS = Limits(exec_seconds=5, test_seconds=10, attempt_seconds=300, memory_mb=1024, disk_mb=64)


class SynthesisConfig(Config):
    """How many tasks of each set, and the seed of all of them."""

    sft: NonNegativeInt = 13_000
    """Tasks for supervised training: 85 % composed functions, 15 % hand-written kinds."""
    rl: NonNegativeInt = 1_500
    """Tasks for reinforcement learning: composed functions, each with a test that passes before the fix."""
    held_out: NonNegativeInt = 300
    """Tasks for evaluation: composed functions whose signature no training set has."""
    harder: NonNegativeInt = 200
    """Tasks for evaluation: hand-written kinds of function that no training set has."""
    seed: int = 0
    """The same seed and counts give the same tasks, on any machine."""


@dataclass(frozen=True, slots=True)
class _Recipe:
    draw: Callable[[Random], Function]
    bugs: int = 1
    """Most tasks made from one function."""
    needs_pass: bool = True
    """Whether a test that passes before the fix is required."""


@dataclass(frozen=True, slots=True)
class _Case:
    call: str
    expected: str
    passes: bool


@dataclass(frozen=True, slots=True)
class _Bug:
    function: Function
    mutant: Mutant
    cases: tuple[_Case, ...]
    issue: str


def synthesize(config: SynthesisConfig) -> dict[str, list[Task]]:
    """The sets `sft`, `rl`, `held_out` and `harder`, of the sizes asked for."""
    seen: set[str] = set()
    counts = {name: getattr(config, name) for name in reversed(_RECIPES)}  # evaluation first: it never moves
    sets = {name: _make(name, count, config.seed, seen) for name, count in counts.items()}
    return {name: sets[name] for name in _RECIPES}


def _make(name: str, count: int, seed: int, seen: set[str]) -> list[Task]:
    """`count` tasks whose buggy sources are not in `seen`; adds them to it."""
    recipe, rng = _RECIPES[name], Random(f"{seed}/{name}")
    tasks: list[Task] = []
    while len(tasks) < count:
        new = [bug for bug in _bugs(recipe, rng) if bug.mutant.source not in seen]
        seen.update(bug.mutant.source for bug in new)
        tasks += [task for task in (_task(bug, name) for bug in new) if task]
    return tasks[:count]


# --- functions --------------------------------------------------------------------------------


def _mixed(rng: Random) -> Function:
    return _training(rng) if rng.random() < _COMPOSED_SHARE else rng.choice(TRAINING).function(rng)


def _training(rng: Random) -> Function:
    return composed(rng, held_out=False)


def _held_out(rng: Random) -> Function:
    return composed(rng, held_out=True)


def _harder(rng: Random) -> Function:
    return rng.choice(HARDER).function(rng)


_RECIPES = {
    "sft": _Recipe(_mixed, bugs=2, needs_pass=False),
    "rl": _Recipe(_training),
    "held_out": _Recipe(_held_out),
    "harder": _Recipe(_harder),
}


# --- bugs -------------------------------------------------------------------------------------


def _bugs(recipe: _Recipe, rng: Random) -> Iterator[_Bug]:
    """Up to `recipe.bugs` different bugs of one function drawn."""
    function = recipe.draw(rng)
    examples = _examples(function)
    candidates = mutants(function.source)
    if len(examples) < 2 or not candidates:
        return
    done: set[str] = set()
    for _ in range(3 * recipe.bugs):
        mutant = pick(candidates, rng)
        bug = None if mutant.source in done else _bug(function, mutant, examples, recipe.needs_pass, rng)
        if bug is not None:
            done.add(mutant.source)
            yield bug
        if len(done) == recipe.bugs:
            return


def _examples(function: Function) -> list[tuple[Arguments, Any]]:
    """Different calls, and what the good function gives for them."""
    program = Program(function.source)
    examples: list[tuple[Arguments, Any]] = []
    for call in function.calls:
        outcome = program.call(function.name, call)
        if outcome.gives(outcome.value) and all(call != other for other, _ in examples):
            examples.append((call, outcome.value))
    return examples


def _bug(
    function: Function,
    mutant: Mutant,
    examples: list[tuple[Arguments, Any]],
    needs_pass: bool,
    rng: Random,
) -> _Bug | None:
    """The mutant with at most three tests, or None when no test, or every call, shows that it is one."""
    program = Program(mutant.source)
    outcomes = [(program.call(function.name, call), call, value) for call, value in examples]
    if any(outcome.endless for outcome, _, _ in outcomes):
        return None
    failing = [row for row in outcomes if not row[0].gives(row[2])][: _MAX_CASES - 1]
    passing = [row for row in outcomes if row[0].gives(row[2])][: _MAX_CASES - len(failing)]
    if not failing or (needs_pass and not passing):
        return None
    rows = failing + passing
    rng.shuffle(rows)
    cases = tuple(
        _Case(_call(function, call), repr(value), outcome.gives(value)) for outcome, call, value in rows
    )
    return _Bug(function, mutant, cases, _issue(function, *failing[0]))


def _call(function: Function, arguments: Arguments) -> str:
    return f"{function.name}({', '.join(map(repr, arguments))})"


def _issue(function: Function, outcome: Outcome, call: Arguments, expected: Any) -> str:
    saw = f"raises {outcome.error}" if outcome.error else f"returns {_shown(outcome.value)}"
    return f"{_call(function, call)} {saw}, expected {expected!r}."


def _shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:  # an integer of more than 4,300 digits
        return "a huge number"


# --- tasks ------------------------------------------------------------------------------------


def _task(bug: _Bug, set_name: str) -> Task | None:
    """The task of a bug, unless it is too long to read."""
    function, buggy = bug.function, bug.mutant.source
    names = [f"test_{function.name}_{number}" for number, _ in enumerate(bug.cases, 1)]
    tests = _test_file(function.name, names, bug.cases)
    if len(bug.issue) > _MAX_ISSUE or len(buggy) > _MAX_MODULE or len(tests) > _MAX_TESTS:
        return None
    good_line = function.source.split("\n")[bug.mutant.line - 1]
    digest = hashlib.sha256(f"{buggy}\n{tests}".encode()).hexdigest()[:12]
    return Task(
        id=f"{function.kind.replace('_', '-')}-{digest}",
        prompt=f"Fix mod.py: {bug.issue}",
        tests=Tests(
            command=COMMAND,
            fail_to_pass=_ids(names, bug.cases, passes=False),
            pass_to_pass=_ids(names, bug.cases, passes=True),
            files={"test_mod.py": tests},
        ),
        files={"mod.py": buggy, "test_mod.py": tests, "pytest.ini": _INI},
        solution=line_diff("mod.py", buggy, bug.mutant.line, good_line),
        limits=_LIMITS,
        meta=_meta(bug, set_name),
    )


def _meta(bug: _Bug, set_name: str) -> dict[str, Any]:
    meta = {"source": "synthesis", "set": set_name, "kind": bug.function.kind, "bug": bug.mutant.kind}
    return meta | ({"signature": list(bug.function.signature)} if bug.function.signature else {})


def _test_file(function: str, names: list[str], cases: tuple[_Case, ...]) -> str:
    blocks = [
        f"\n\ndef {name}():\n    assert {case.call} == {case.expected}\n"
        for name, case in zip(names, cases, strict=True)
    ]
    return f"from mod import {function}\n{''.join(blocks)}"


def _ids(names: list[str], cases: tuple[_Case, ...], *, passes: bool) -> tuple[str, ...]:
    pairs = zip(names, cases, strict=True)
    return tuple(f"test_mod.py::{name}" for name, case in pairs if case.passes == passes)
