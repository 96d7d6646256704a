import dataclasses

import pytest
from tests.boxes import in_boxes

from patchwright.grade.tests import Grader
from patchwright.tasks.synthesis import SynthesisConfig, synthesize
from patchwright.tasks.validate import validate

SETS = synthesize(SynthesisConfig(sft=6, rl=2, held_out=6, harder=6, seed=5))


def validated(*tasks):
    async def run(backend):
        return [await validate(task, Grader(backend)) for task in tasks]

    return in_boxes(run)


def test_synthesized_tasks_hold_in_real_boxes():
    tasks = SETS["sft"] + SETS["held_out"] + SETS["harder"]
    assert [(v.ok, v.reason) for v in validated(*tasks)] == [(True, "")] * len(tasks)


def broken(change):
    task = SETS["held_out"][0]
    return {
        "no solution": dataclasses.replace(task, solution=""),
        "solution of another": dataclasses.replace(task, solution=SETS["harder"][0].solution),
        "nothing wrong": dataclasses.replace(task, tests=_named(task, (), task.tests.pass_to_pass)),
        "already passing": dataclasses.replace(task, tests=_named(task, task.tests.pass_to_pass[:1], ())),
        "no such test": dataclasses.replace(task, tests=_named(task, ("test_mod.py::test_gone",), ())),
        "syntax error": dataclasses.replace(task, files={**task.files, "mod.py": "def f(:\n"}),
        "breaks before": dataclasses.replace(
            task, tests=_named(task, task.tests.fail_to_pass, task.tests.fail_to_pass)
        ),
    }[change]


def _named(task, fail_to_pass, pass_to_pass):
    return dataclasses.replace(task.tests, fail_to_pass=fail_to_pass, pass_to_pass=pass_to_pass)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("no solution", "it has no solution or no fail_to_pass test"),
        ("nothing wrong", "it has no solution or no fail_to_pass test"),
        ("solution of another", "the solution does not solve it: patch does not apply"),
        ("already passing", "is passed before the fix, not failed"),
        ("no such test", "test_mod.py::test_gone is missing before the fix, not failed"),
        ("syntax error", "is missing before the fix, not failed"),
        ("breaks before", "is failed before the fix, not passed"),
    ],
)
def test_what_does_not_hold_is_told(change, reason):
    [found] = validated(broken(change))
    assert not found.ok and reason in found.reason
