"""Any program as an agent: inside the box and outside, its bounds, its end, what it leaves."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from tests.gateway.gateway_model import engine, renderer
from tests.grade.test_grader import TASK

from patchwright.agent.command import CommandAgent, CommandConfig, generic
from patchwright.errors import SandboxError
from patchwright.gateway.server import Gateway
from patchwright.grade.tests import Grader
from patchwright.rollout.rollout import Job, Line, attempt
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import Endpoint, Outcome, Sampling

PROGRAM = r"""
import json, os, socket, subprocess, sys, urllib.error, urllib.request

def run(command):
    if "BOX_SOCKET" not in os.environ:
        return subprocess.run(command, shell=True, text=True, capture_output=True).stdout
    link = socket.socket(socket.AF_UNIX)
    link.connect(os.environ["BOX_SOCKET"])
    link.sendall(json.dumps({"command": command}).encode() + b"\n")
    return json.loads(link.makefile().readline())["output"]

talk = [{"role": "user", "content": open(os.environ["TASK_FILE"]).read()}]
while True:
    body = json.dumps({"model": os.environ["OPENAI_MODEL"], "messages": talk}).encode()
    key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, key)
    try:
        reply = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
    except urllib.error.HTTPError as error:
        sys.exit(3)
    if reply == "done":
        break
    talk += [{"role": "assistant", "content": reply}, {"role": "user", "content": run(reply)}]
json.dump(talk, open(os.environ["OUT"] + "/talk.json", "w"))
print("key", os.environ["OPENAI_API_KEY"])
"""
COMMAND = f"cat > $OUT/program.py <<'EOF'\n{PROGRAM}\nEOF\npython3 $OUT/program.py"
SED = "sed -i 's/x + 2/x * 2/' mod.py"


def make(script, command=COMMAND, *, outside=False, seconds=120.0, sampled=None, **bounds):
    """One attempt at TASK: the trajectory, and the files that were kept."""
    kept = {}

    async def main():
        boxes = NamespaceBackend()
        config = CommandConfig(command=command, keep=[".agent/talk.json"], max_sampled=sampled)
        program = replace(generic(config, None), outside=outside)
        agent = CommandAgent(program, config, **bounds)
        task = replace(TASK, limits=replace(TASK.limits, attempt_seconds=seconds))
        try:
            async with Gateway(engine(script), renderer()) as gateway:
                line = Line(
                    backend=boxes,
                    agent=agent,
                    model=gateway,
                    grade=Grader(boxes),
                    keep=lambda _, f: kept.update(f),
                )
                return await attempt(line, Job(id="a", task=task, sampling=Sampling(max_tokens=4096)))
        finally:
            await agent.close()
            await boxes.close()

    return asyncio.run(main()), kept


def alone(command, seconds=120.0):
    """The exit of a program that never calls the model."""

    async def main():
        boxes = NamespaceBackend()
        agent = CommandAgent(generic(CommandConfig(command=command), None))
        task = replace(TASK, limits=replace(TASK.limits, attempt_seconds=seconds))
        try:
            box = await boxes.open(agent.furnish(BoxSpec()))
            found = await agent.run(task, box, Endpoint(base_url="http://127.0.0.1:9/v1", api_key="secret"))
            left = await box.exec("ps -A -o args | grep -c '[s]leep 77'")
            return found, left.output.strip()
        finally:
            await boxes.close()

    return asyncio.run(main())


@pytest.mark.parametrize("outside", [False, True])
def test_a_program_fixes_the_bug_and_is_recorded_to_the_token(outside):
    done, kept = make(["cat mod.py", SED, "done"], outside=outside)
    assert (done.outcome, done.exit) == (Outcome.RESOLVED, "submitted")
    assert [(turn.parent, turn.drift, turn.train) for turn in done.turns] == [
        (None, (), True),
        (0, (), True),
        (1, (), True),
    ]
    talk = json.loads(kept["talk.json"])
    assert talk[0]["content"] == TASK.prompt and "return x + 2" in talk[2]["content"]
    assert outside or done.steps[0].exec.output == "key in-the-box\n"


def test_the_bound_on_calls_ends_a_program_that_has_none():
    done, _ = make(["true"] * 9, max_turns=3)
    assert (len(done.turns), done.exit, done.outcome) == (3, "budget", Outcome.UNRESOLVED)


def test_the_bound_on_sampled_tokens_ends_it_too():
    done, _ = make(["true"] * 9, sampled=3 * (len(renderer().encode("true")) + 1))
    assert (len(done.turns), done.exit, done.outcome) == (3, "budget", Outcome.UNRESOLVED)


def test_a_program_that_breaks_before_its_first_call_is_no_attempt():
    done, _ = make([], "echo no such library >&2; exit 1")
    assert done.outcome is Outcome.VOID and "no such library" in done.failure.message


def test_a_program_that_breaks_later_is_graded_as_it_stands():
    done, _ = make([SED, "done"], COMMAND + "; exit 9")
    assert (done.exit, done.outcome) == ("exit_9", Outcome.RESOLVED)


def test_a_program_that_cannot_start_is_the_boxes_fault():
    with pytest.raises(SandboxError, match="cannot start in this box"):
        alone("no-such-agent")


def test_time_ends_the_program_and_all_it_started():
    found, left = alone("sleep 77 & (sleep 77; true); sleep 77", seconds=1.0)
    assert (found.reason, left) == ("time_limit", "0")


def test_the_program_is_told_its_bounds_and_no_secret():
    found, _ = alone("env; cat /proc/*/environ 2> /dev/null | tr '\\0' '\\n'")
    said = found.steps[0].exec.output
    assert "MAX_TURNS=30\n" in said and "OPENAI_API_KEY=in-the-box\n" in said and "secret" not in said
    assert "ANTHROPIC_BASE_URL=http://127.0.0.1:8011\n" in said
