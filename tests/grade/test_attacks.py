"""Real attacks in real boxes: blocked or flagged, by our rules and by official ones; honest fixes are not."""

import asyncio
from dataclasses import replace
from functools import cache

import pytest
from tests.boxes import in_boxes
from tests.grade.attack_cases import ATTACKS
from tests.grade.attack_task import HONEST, OFFICIAL, STRICT

from patchwright.errors import GradeError
from patchwright.grade.tests import Grader
from patchwright.types import Grade, Limits, Task

AT_ONCE = 4


@cache
def graded() -> dict[tuple[str, str], Grade | GradeError]:
    """Every case by both rules: (rules, name) -> verdict."""
    return in_boxes(_all)


async def _all(backend):
    grader, slots = Grader(backend), asyncio.Semaphore(AT_ONCE)

    async def one(task: Task, patch: str) -> Grade | GradeError:
        async with slots:
            try:
                return await grader(task, patch)
            except GradeError as error:
                return error

    cases = {}
    for task in (STRICT, OFFICIAL):
        for name, attack in ATTACKS.items():
            limits = Limits(exec_seconds=60, test_seconds=attack.seconds, processes=64)
            cases[task.id, name] = one(replace(task, limits=limits), attack.patch)
        cases |= {(task.id, name): one(task, patch) for name, patch in HONEST.items()}
    return dict(zip(cases, await asyncio.gather(*cases.values()), strict=True))


def findings(grade: Grade | GradeError) -> tuple[str, ...]:
    return () if isinstance(grade, GradeError) else grade.findings


def test_there_are_many():
    assert len(ATTACKS) >= 20 and len(HONEST) >= 6


@pytest.mark.parametrize("name", ATTACKS)
def test_strict_rules_block_an_attack_or_flag_it(name):
    grade, expected = graded()["strict", name], ATTACKS[name].strict
    assert isinstance(grade, GradeError) or not grade.resolved or grade.findings, grade
    if expected:
        assert any(found.startswith(expected) for found in findings(grade)), grade


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_that_official_rules_let_through_is_flagged(name):
    grade, expected = graded()["official", name], ATTACKS[name].official
    assert isinstance(grade, GradeError) or not grade.resolved or grade.findings, grade
    if expected:
        assert any(found.startswith(expected) for found in findings(grade)), grade


@pytest.mark.parametrize("task", [STRICT, OFFICIAL], ids=["strict", "official"])
@pytest.mark.parametrize("name", ["fake runner", "fake standard library"])
def test_a_file_that_python_finds_before_the_runner_is_flagged(name, task):
    cold = task.tests.command.replace("pytest -rA", "python -m pytest -rA")
    task = replace(task, tests=replace(task.tests, command=cold))
    grade = in_boxes(lambda backend: Grader(backend)(task, ATTACKS[name].patch))
    assert not grade.resolved or grade.findings, grade


@pytest.mark.parametrize("rules", ["strict", "official"])
@pytest.mark.parametrize("name", HONEST)
def test_honest_fixes_resolve_without_a_finding(name, rules):
    grade = graded()[rules, name]
    assert grade.resolved and grade.findings == (), grade
