"""The harnesses for real: kits as they are installed, real boxes and grading; a made-up task, and a scripted
policy that fixes its bug.

mini-swe-agent and Qwen Code always; the others, whose kits are heavy, where PATCHWRIGHT_HARNESSES names them.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

import pytest
from tests.boxes import in_boxes
from tests.e2e.conftest import patchwright
from tests.gateway.gateway_model import HERMES, engine, renderer
from tests.grade.test_grader import TASK

from patchwright.agent.command import CommandAgent, CommandConfig
from patchwright.agent.harness.names import find_plan, program_of
from patchwright.agent.kit import install
from patchwright.gateway.server import Gateway
from patchwright.grade.tests import Grader
from patchwright.recipes.check_agent import DIALECTS, called
from patchwright.rollout.rollout import Job, Line, attempt
from patchwright.store import Run
from patchwright.tasks.files import dump_tasks
from patchwright.types import Outcome, Sampling

pytestmark = pytest.mark.e2e
SED = "sed -i 's/x + 2/x * 2/' mod.py"
INSIDE = ["mini-swe-agent", "qwen-code", *os.environ.get("PATCHWRIGHT_HARNESSES", "").split()]


@dataclass
class Found:
    trajectory: object
    files: dict
    requests: list


def fix(name):
    """Replies that look, edit, look again and end."""
    run, submit = DIALECTS[name].run, DIALECTS[name].submit
    edit = [run(SED)]
    if name == "qwen-code":  # its own way: a file is read before it is edited
        edit = [
            called("read_file", file_path="/testbed/mod.py"),
            called("edit", file_path="/testbed/mod.py", old_string="x + 2", new_string="x * 2"),
        ]
    return [run("cat -n mod.py; id -u; env"), *edit, run("git diff"), submit]


def make(name, script, *, task=TASK, outside=False, resident=True, max_turns=12):
    kept = {}
    config = CommandConfig(outside=outside, resident=resident)
    install(find_plan(name))

    async def main(boxes):
        agent = CommandAgent(program_of(name, config), config, max_turns=max_turns)
        limits = replace(task.limits, attempt_seconds=600, exec_seconds=120)
        try:
            scripted = engine(script, HERMES, max_context=200_000)
            async with Gateway(scripted, renderer(HERMES)) as gateway:
                line = Line(
                    backend=boxes,
                    agent=agent,
                    model=gateway,
                    grade=Grader(boxes),
                    keep=lambda _, files: kept.update(files),
                )
                job = Job(id="a", task=replace(task, limits=limits), sampling=Sampling(max_tokens=8192))
                return await attempt(line, job)
        finally:
            await agent.close()

    return in_boxes(main), kept


def check_fixed(name, done, kept, script):
    assert (done.outcome, done.exit) == (Outcome.RESOLVED, "submitted"), done.failure or done.steps
    voice = renderer(HERMES)
    assert [voice.decode(turn.completion_ids) for turn in done.turns] == script
    assert [turn.parent for turn in done.turns] == [None, *range(len(script) - 1)]  # one chain
    assert all(turn.train for turn in done.turns)  # no side call
    assert {drift for turn in done.turns for drift in turn.drift} <= {"reserialised"}
    assert all(kept.values()) and kept
    print(name, figures(done))


def figures(done):
    """Calls, drift events, and the share of tokens that are trained."""
    sampled = sum(len(turn.completion_ids) for turn in done.turns)
    tokens = sampled + sum(len(turn.prompt_ids) for turn in done.turns)
    drift = sum(len(turn.drift) for turn in done.turns)
    return f"calls {len(done.turns)}, drift {drift}, trained {sampled / tokens:.2%} of {tokens}"


@pytest.mark.parametrize("name", INSIDE)
def test_it_fixes_a_bug_inside_of_a_box_without_a_network(name):
    script = fix(name)
    done, kept = make(name, script)
    check_fixed(name, done, kept, script)
    said = "\n".join(message["content"] or "" for message in done.messages)
    assert "in-the-box" in said or name == "codex"  # its commands see no secret, for there is none
    assert "PYTHONPATH" not in said and "LD_LIBRARY_PATH" not in said


def test_mini_swe_agent_works_where_it_cannot_be_held_loaded():
    script = fix("mini-swe-agent")
    done, kept = make("mini-swe-agent", script, resident=False)
    check_fixed("mini-swe-agent not loaded", done, kept, script)


def test_mini_swe_agent_works_outside_too():
    script = fix("mini-swe-agent")
    done, kept = make("mini-swe-agent", script, outside=True)
    check_fixed("mini-swe-agent outside", done, kept, script)
    assert "OPENAI_API_KEY" not in "\n".join(message["content"] or "" for message in done.messages)


@pytest.mark.parametrize("name", INSIDE)
def test_the_local_engine_answers_it(name, tmp_path):
    """An untrained model of our own: no call does any good, and every token is recorded."""
    dump_tasks(tmp_path / "tasks.jsonl", [TASK])
    shape = ("-s", "new.model.max_positions=131072")
    made = patchwright("train", "new", "--tasks", "tasks.jsonl", "--out", "model", *shape, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    bounds = ("-s", "line.agent.max_turns=2", "-s", "line.sampling.max_tokens=32")
    where = ("--tasks", "tasks.jsonl", "--model", "model", "--run", "run", "-n", "1")
    done = patchwright("eval", *where, "--agent", name, *bounds, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with Run.open(tmp_path / "run") as run:
        (found,) = run.trajectories()
    assert found.outcome is Outcome.UNRESOLVED and 1 <= len(found.turns) <= 2
    assert all(0 < len(turn.completion_ids) == len(turn.logprobs) <= 32 for turn in found.turns)


@pytest.mark.parametrize("name", INSIDE)
def test_its_calls_are_bounded(name):
    looks = [DIALECTS[name].run(f"cat mod.py; : {number}") for number in range(9)]
    done, _ = make(name, looks, max_turns=3)
    assert len(done.turns) == 3 and done.exit in ("max_turns", "budget")
    assert done.outcome is Outcome.UNRESOLVED
