"""The built-in agent's contract beyond its loop: prompts a user lays over ours, reminders, thinking, time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_endpoint import REQUESTS, STOP, Folder, serve
from starlette.responses import JSONResponse

from patchwright.agent.bash import BashAgent, BashConfig
from patchwright.agent.prompts import VARIABLES
from patchwright.config import load_config
from patchwright.errors import ConfigError
from patchwright.sandbox.base import BoxSpec
from patchwright.types import AgentExit, Limits, Task, Tests

TASK = Task(id="t", prompt="Fix it.", tests=Tests(command="true", fail_to_pass=("a",)), meta={"repo": "x"})


def run(script, task=TASK, **config) -> AgentExit:
    async def main() -> AgentExit:
        box, agent = Folder(BoxSpec()), BashAgent(BashConfig(**config))
        try:
            async with serve(script) as endpoint, asyncio.timeout(60):
                return await agent.run(task, box, endpoint)
        finally:
            await agent.close()
            await box.close()

    return asyncio.run(main())


def say(command: str) -> str:
    return f"THOUGHT: go.\n\n```bash\n{command}\n```"


def test_every_answer_says_how_many_turns_are_left():
    run([say("true"), "no block", say("true"), say("true")], max_turns=4)
    said = [message["content"] for message in REQUESTS[-1]["messages"] if message["role"] == "user"][1:]
    assert "3 turns are left" in said[0]
    assert "this took a turn; 2 left" in said[1]
    assert "1 turn is left, so use it to submit" in said[2]


def test_a_block_that_was_only_thought_of_is_not_run():
    done = run([f"<think>\n{say('touch a')}\n</think>\n" + say("echo b"), STOP])
    assert [step.command for step in done.steps] == ["echo b"]
    thought = f"<think>\n{say('touch a')}\n</think>\nI wonder."
    assert run([thought, STOP]).steps == ()
    assert REQUESTS[-1]["messages"][-2]["content"] == thought, "the model is shown its own words"


def test_a_task_out_of_time_keeps_its_steps():
    task = replace(TASK, limits=Limits(attempt_seconds=6.0, exec_seconds=30))
    started = time.monotonic()
    done = run([say("echo done"), say("sleep 60"), say("echo late")], task)
    assert done.reason == "time_limit"
    assert [(step.command, step.exec.timed_out) for step in done.steps] == [
        ("echo done", False),
        ("sleep 60", True),
    ]
    assert time.monotonic() - started < 50


def test_a_model_that_takes_too_long_ends_the_attempt_with_its_steps():
    async def main():
        box, agent = Folder(BoxSpec()), BashAgent()
        answered = asyncio.Event()

        async def silent(reader, writer):
            answered.set()
            await reader.read()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with serve([]) as endpoint, asyncio.timeout(60):
            task = replace(TASK, limits=Limits(attempt_seconds=4.0))
            done = await agent.run(task, box, replace(endpoint, base_url=url))
        server.close()
        await agent.close()
        await box.close()
        return done.reason, answered.is_set()

    assert asyncio.run(main()) == ("time_limit", True)


def test_the_conversation_is_kept_with_what_the_endpoint_counted():
    usage = {"prompt_tokens": 90, "completion_tokens": 7}
    counted = JSONResponse({"choices": [{"message": {"content": say("echo hi")}}], "usage": usage})
    done = run([counted, STOP])
    assert [message["role"] for message in done.messages] == ["system", "user", "assistant", "user"]
    assert done.messages[2]["usage"] == usage
    assert all("usage" not in message for message in REQUESTS[-1]["messages"])


# --- prompts a user brings --------------------------------------------------------------------


def folder_of(path: Path, **texts: str) -> str:
    for name, text in texts.items():
        (path / f"{name}.jinja").write_text(text)
    return str(path)


def test_files_of_a_folder_replace_the_built_in_prompts_they_are_named_after(tmp_path):
    folder = folder_of(tmp_path, instance="{{ task.meta.repo }}: {{ task.prompt }}\n")
    run([say("true"), STOP], prompts=folder)
    system, user, _, observation = [message["content"] for message in REQUESTS[-1]["messages"]]
    assert user == "x: Fix it."
    assert "software engineer" in system and observation.startswith("<returncode>0")


def test_the_texts_of_the_folder_are_part_of_the_configuration(tmp_path):
    folder = folder_of(tmp_path, system="", observation="{{ output }}")
    config = load_config(BashConfig, None, [f"prompts={folder}"])
    assert (config.system, config.observation, config.instance) == ("", "{{ output }}", None)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({}, "which holds no template; put there any of system.jinja, instance.jinja"),
        ({"sistem": "x"}, "sistem.jinja is no template the agent knows; did you mean `system.jinja`"),
        ({"instance": "{{ promt }}"}, "template `instance` names `promt`; it may use config, task"),
        (
            {"instance": "{{ task.promt }}"},
            "names `task.promt`, which is not there; did you mean `task.prompt`",
        ),
        ({"format_error": "{% for %}"}, "template `format_error` is broken at line 1"),
        (
            {"instance": "{{ task.meta.absent }}"},
            "template `instance` cannot be filled: .* 'absent'; mend it",
        ),
        ({"observation": "{{ 1 // 0 }}"}, "template `observation` cannot be filled: .*zero"),
    ],
)
def test_a_mistake_in_a_prompt_is_one_sentence(tmp_path, texts, words):
    with pytest.raises(ConfigError, match=words) as caught:
        run([say("true"), STOP], prompts=folder_of(tmp_path, **texts))
    assert "\n" not in str(caught.value)


def test_every_built_in_template_fills_whatever_its_variables():
    for tools in (False, True):
        agent = BashAgent(BashConfig(tools=tools))
        for name, variables in VARIABLES.items():
            values = dict.fromkeys(variables - {"task", "config"}, 0)
            assert agent.render(name, task=TASK, **values).strip()
