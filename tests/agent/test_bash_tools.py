"""The tool-calling form of the built-in agent: `bash` and `edit`, and calls nobody should make."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from scripted_endpoint import REQUESTS, STOP, Folder, serve
from starlette.responses import JSONResponse

from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.namespace import NamespaceBackend
from patchwright.types import AgentExit, Task, Tests

TASK = Task(id="t", prompt="Fix mod.py.", tests=Tests(command="true", fail_to_pass=("a",)), workdir="/w")


def call(name, arguments, id="c1"):
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"id": id, "type": "function", "function": {"name": name, "arguments": text}}


def calls(*made):
    return JSONResponse({"choices": [{"message": {"content": None, "tool_calls": list(made)}}]})


def bash(command, id="c1"):
    return call("bash", {"command": command}, id)


def edit(path, old, new):
    return call("edit", {"path": path, "old": old, "new": new})


SUBMIT = calls(bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))


def run(script, files=None, **config) -> tuple[AgentExit, dict[str, bytes]]:
    async def main():
        box, agent = Folder(BoxSpec(workdir="/w")), BashAgent(BashConfig(tools=True, **config))
        try:
            for name, content in (files or {}).items():
                await box.write(name, content)
            async with serve(script) as endpoint, asyncio.timeout(60):
                done = await agent.run(TASK, box, endpoint)
            names = (await box.exec("find . -type f -printf '%P\\n'")).output.split()
            return done, {name: await box.read(name) for name in names}
        finally:
            await agent.close()
            await box.close()

    return asyncio.run(main())


def answers():
    """What the last request says the last reply's calls gave."""
    messages = REQUESTS[-1]["messages"]
    last = max(i for i, message in enumerate(messages) if message["role"] == "assistant")
    return [message["content"] for message in messages[last + 1 :]]


def test_calls_are_run_in_order_and_each_is_answered_by_its_id():
    done, _ = run([calls(bash("echo one", "a"), bash("exit 3", "b")), SUBMIT])
    assert done.reason == "submitted"
    assert [(step.command, step.exec.code, step.turn) for step in done.steps][:2] == [
        ("echo one", 0, 0),
        ("exit 3", 3, 0),
    ]
    *_, asked, first, second = REQUESTS[-1]["messages"]
    assert [made["id"] for made in asked["tool_calls"]] == ["a", "b"]
    assert (first["role"], first["tool_call_id"], second["tool_call_id"]) == ("tool", "a", "b")
    assert "one" in first["content"] and "<returncode>3</returncode>" in second["content"]
    assert [tool["function"]["name"] for tool in REQUESTS[0]["tools"]] == ["bash", "edit"]


def test_an_edit_replaces_one_place_and_keeps_every_other_byte():
    content = b"\xff\x00 caf\xc3\xa9\r\none = 1\r\ntwo = 2\n"
    done, files = run([calls(edit("mod.py", "one = 1", "one = '$(x) `y` %s'")), SUBMIT], {"mod.py": content})
    assert files["mod.py"] == content.replace(b"one = 1", b"one = '$(x) `y` %s'")
    assert done.steps[0].command == "edit mod.py"
    assert "mod.py was changed" in answers()[0]


def test_an_edit_makes_a_new_file_in_a_new_folder():
    done, _ = run([calls(edit("new/n.py", "", "x\n")), calls(bash("cat new/n.py")), SUBMIT])
    assert [step.exec.output for step in done.steps[:2]] == ["new/n.py was changed\n", "x\n"]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (edit("mod.py", "x", "y"), "in the file 2 times"),
        (edit("mod.py", "absent", "y"), "in the file 0 times"),
        (edit("mod.py", "", "y"), "the file is there already"),
        (edit("nowhere.py", "x", "y"), "no such file"),
        (edit(".", "x", "y"), "cannot be read"),
        (edit("a\x00b", "", "y"), "the path is none a file can have"),
        (edit("n.py", "", "\ud800"), "not text that UTF-8 can hold"),
        (call("edit", {"path": "mod.py"}), "takes `path`, `old`, `new`"),
        (call("bash", {"command": ["ls"]}), "takes `command`, each a text"),
        (call("bash", "{ls"), "not JSON"),
        (call("bash", "[" * 100_000), "not JSON"),
        (bash("  "), "must not be empty"),
        (call("python", {}), "there is no tool 'python'"),
        ({"id": "x", "function": "bash"}, "there is no tool"),
        ({}, "there is no tool"),
    ],
)
def test_a_call_that_cannot_be_run_is_answered_with_the_reason(made, words):
    done, files = run([calls(made), STOP], {"mod.py": b"x x"})
    assert (done.reason, done.steps) == ("context_full", ())
    [answer] = answers()
    assert words in answer and answer.startswith("Nothing was run")
    assert files == {"mod.py": b"x x"}


def test_replies_without_a_call_that_can_be_run_end_the_attempt():
    nothing = call("python", {})
    done, _ = run(["no call", calls(nothing), "no call", "never asked"], max_format_errors=3)
    assert done.reason == "format_errors" and len(REQUESTS) == 3
    assert "the reply calls no tool" in REQUESTS[1]["messages"][-1]["content"]
    done, _ = run(["no call", calls(nothing, bash("true")), "no", STOP], max_format_errors=2)
    assert done.reason == "context_full", "one call that ran starts the count anew"


def test_the_sentinel_ends_the_attempt_before_the_calls_after_it():
    sentinel = bash("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
    done, files = run([calls(sentinel, bash("touch late"))])
    assert (done.reason, len(done.steps), files) == ("submitted", 1, {})


def test_a_real_box_takes_edits_by_relative_and_absolute_path():
    odd = '-a b/it\'s "$x".py'
    script = [
        calls(edit(odd, "", "x = 1\n"), edit(f"/testbed/{odd}", "1", "2")),
        calls(edit("run.sh", "old", "new"), bash("cat ./-a*/*; ./run.sh; readlink run.sh")),
        SUBMIT,
    ]

    async def main():
        backend = NamespaceBackend()
        agent = BashAgent(BashConfig(tools=True))
        try:
            box = await backend.open(BoxSpec())
            await box.exec(
                "printf '#!/bin/sh\necho old\n' > real.sh; chmod 755 real.sh; ln -s real.sh run.sh"
            )
            async with serve(script) as endpoint:
                return await agent.run(replace(TASK, workdir="/testbed"), box, endpoint)
        finally:
            await agent.close()
            await backend.close()

    done = asyncio.run(main())
    assert done.reason == "submitted"
    assert done.steps[3].exec.output == "x = 2\nnew\nreal.sh\n"
