"""Real fixes of two real libraries, mined from the package index and graded: what CI shows end to end."""

import asyncio
import base64
import json
from dataclasses import replace

import pytest
from tests.agent.test_harness_real import INSIDE, make
from tests.agent.tool_endpoint import scripted
from tests.e2e.conftest import patchwright
from tests.e2e.test_docs import commands

from patchwright.agent.harness.names import find_plan
from patchwright.agent.kit import install
from patchwright.errors import GradeError
from patchwright.grade.tests import Grader
from patchwright.recipes.assembly import SandboxConfig
from patchwright.recipes.check_agent import DIALECTS
from patchwright.recipes.mine import mine
from patchwright.recipes.presets import load_settings, names
from patchwright.recipes.progress import View
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.hunks import variants
from patchwright.tasks.mining.mine import Settings
from patchwright.types import GradeState, Outcome

pytestmark = pytest.mark.e2e
PRESETS = {name: load_settings(name, None, []).line for name in names()}
AGENTS = ("bash", *INSIDE)


@pytest.fixture(scope="module")
def mined(tmp_path_factory):
    """Tasks of isodate, as the command of docs/tasks.md makes them, and of boltons."""
    folder = tmp_path_factory.mktemp("mined")
    (command,) = (line for line in commands("docs/tasks.md") if line[:2] == ["tasks", "mine"])
    done = patchwright(*command, cwd=folder)
    assert done.returncode == 0, done.stderr
    out, settings = folder / "boltons.jsonl", Settings(repeat=2, workers=2)
    asyncio.run(mine("pypi:boltons", "26.0.0..26.1.0", 3, settings, SandboxConfig(), out, View()))
    return {"isodate": load_tasks(folder / "made/isodate.jsonl"), "boltons": load_tasks(out)}


def graded(task, *patches):
    async def run():
        backend = NamespaceBackend()
        try:
            grader = Grader(backend)
            return await asyncio.gather(*(grader(task, patch) for patch in patches), return_exceptions=True)
        finally:
            await backend.close()

    return asyncio.run(run())


def wrong(task):
    """The solution without a piece of it, or with a word turned; nothing where neither can be done."""
    return [variant.patch for variant in variants(task.solution)[-1:]]


def test_gold_is_resolved_and_nothing_and_a_wrong_patch_are_not(mined):
    tried = []
    for library, tasks in mined.items():
        for task in tasks:
            gold, empty, *others = graded(task, task.solution, "", *wrong(task))
            verdicts = (gold.resolved, empty.resolved, *(other.resolved for other in others))
            assert verdicts == (True, *(False for _ in verdicts[1:])), task.id
            tried += [library for _ in others]
    assert len(tried) >= 3 and set(tried) == set(mined)


@pytest.mark.parametrize("name", INSIDE)
def test_a_harness_fixes_one(mined, name):
    task = mined["boltons"][0]
    done, _ = make(name, fixing(task, name), task=task)
    assert done.outcome is Outcome.RESOLVED, done.failure or done.steps
    assert [turn.parent for turn in done.turns] == [None, 0, 1]


def fixing(task, agent):
    """What a model says that knows the fix."""
    voice, gold = DIALECTS[agent], base64.b64encode(task.solution.encode()).decode()
    return [voice.run("git status"), voice.run(f"echo {gold} | base64 -d | git apply"), voice.submit]


@pytest.mark.parametrize("preset", [name for name, line in PRESETS.items() if line.agent.use in AGENTS])
def test_a_preset_evaluates_one(mined, preset, tmp_path, monkeypatch):
    task, line = mined["boltons"][0], PRESETS[preset]
    if line.agent.use in INSIDE:
        install(find_plan(line.agent.use))
    dump_tasks(tmp_path / "tasks.jsonl", [task])
    monkeypatch.setenv("OPENAI_API_KEY", "key")
    with scripted(fixing(task, line.agent.use)) as (url, bodies):
        where = ("--tasks", "tasks.jsonl", "--base-url", url, "--model", "m-1", "--run", "run")
        done = patchwright("eval", *where, "--preset", preset, "-n", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    row = json.loads((tmp_path / "run/results.jsonl").read_text())
    assert (row["resolved"], row["exit_status"], row["n_steps"]) == (True, "submitted", 3)
    prediction = json.loads((tmp_path / "run/predictions-0.jsonl").read_text())
    assert prediction["instance_id"] == task.id and prediction["model_patch"].startswith("diff --git")
    asked = {(body["temperature"], body["max_tokens"]) for body in bodies}
    assert asked == {(line.sampling.temperature, line.sampling.max_tokens)}


def test_a_broken_environment_is_void(mined):
    for tasks in mined.values():
        (found,) = graded(replace(tasks[0], setup=("python3 -c 'import no_such'",)), tasks[0].solution)
        assert isinstance(found, GradeError) and found.state is GradeState.ENV_BROKEN, found


def test_a_runner_that_is_not_there_is_void(mined):
    task = mined["isodate"][0]
    tests = replace(task.tests, command=task.tests.command.replace("-m pytest", "-m no_pytest"))
    (found,) = graded(replace(task, tests=tests), task.solution)
    assert isinstance(found, GradeError) and found.state is GradeState.NO_TESTS_PARSED, found


def test_a_task_tells_no_line_of_its_fix_and_does_not_ship_the_new_tests(mined):
    for task in mined["boltons"]:
        fix = [line[1:].strip() for line in task.solution.splitlines() if line.startswith("+")]
        assert not any(line in task.prompt for line in fix if len(line) > 20)
        assert task.tests.patch and task.meta["lines"] <= 200
