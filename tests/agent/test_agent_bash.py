"""The built-in agent: its loop, its bounds, and what it makes of replies nobody would send."""

from __future__ import annotations

import asyncio
import time

import pytest
from scripted_endpoint import BUSY, REQUESTS, STOP, Folder, serve
from starlette.responses import JSONResponse, Response

from patchwright.agent.bash import BashAgent, BashConfig, bash_blocks
from patchwright.errors import AgentError, ConfigError, EngineError
from patchwright.sandbox.base import BoxSpec
from patchwright.types import AgentExit, Endpoint, Task, Tests

TASK = Task(id="t", prompt="Fix {{ mod.py }}.", tests=Tests(command="true", fail_to_pass=("a",)))
SUBMIT = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"


def run(script, **config) -> AgentExit:
    async def main() -> AgentExit:
        box, agent = Folder(BoxSpec()), BashAgent(BashConfig(**config))
        try:
            async with serve(script) as endpoint, asyncio.timeout(60):
                return await agent.run(TASK, box, endpoint)
        finally:
            await agent.close()
            await box.close()

    return asyncio.run(main())


def say(command: str) -> str:
    return f"THOUGHT: go.\n\n```bash\n{command}\n```"


def last_user_message() -> str:
    return REQUESTS[-1]["messages"][-1]["content"]


def test_commands_run_in_turn_and_the_sentinel_submits():
    done = run([say("echo hi > a; cat a"), say("cat a nothing"), SUBMIT])
    assert done.reason == "submitted"
    assert [(step.exec.code, step.turn) for step in done.steps] == [(0, 0), (1, 1), (0, 2)]
    roles = [message["role"] for message in REQUESTS[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    assert REQUESTS[1]["messages"][-1]["content"] == (
        "<returncode>0</returncode>\n<output>\nhi\n</output>\nREMINDER: 29 turns are left."
    )
    assert "Fix {{ mod.py }}." in REQUESTS[0]["messages"][1]["content"]


@pytest.mark.parametrize(
    "command",
    [
        "echo; echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",  # not the first line
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; false",  # failed
        "echo do not COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",  # only a part of the line
    ],
)
def test_only_the_sentinel_as_first_line_of_a_command_that_succeeds_submits(command):
    assert run([say(command), STOP]).reason == "context_full"


def test_the_format_is_taught_and_errors_in_a_row_end_the_attempt():
    replies = ["no block", say("true"), say("echo 1") + "\n" + say("echo 2"), "none", "none"]
    done = run([*replies, SUBMIT], max_format_errors=3)
    assert done.reason == "format_errors"
    assert len(done.steps) == 1
    assert "exactly one bash block" in last_user_message()
    assert "this one has 2" in REQUESTS[3]["messages"][-1]["content"]


def test_the_number_of_turns_is_bounded():
    done = run([say("true")] * 9, max_turns=4)
    assert (done.reason, len(done.steps), len(REQUESTS)) == ("max_turns", 4, 4)


def test_long_output_keeps_head_and_tail():
    run([say("seq 1 100000"), STOP], max_output=100)
    shown = last_user_message()
    assert shown.startswith("<returncode>0</returncode>\n<output>\n1\n2\n3")
    assert "99999\n100000\n</output>\nREMINDER" in shown
    assert "characters left out" in shown
    assert len(shown) < 300


def test_a_command_out_of_time_is_an_observation():
    run([say("echo start; sleep 9"), STOP], exec_timeout=0.3)
    assert "<returncode>124</returncode>" in last_user_message()
    assert "out of time" in last_user_message()


@pytest.mark.parametrize(
    "reply",
    [
        "x" * 2**20,
        "```bash\n" * 100_000,
        "\n".join([say("true")] * 10),
        "\x00\u202e\ufffd",
        say("echo \x00"),
        say("echo " + "y" * 200_000),
        say(" "),
        "",
    ],
    ids=["megabyte", "open fences", "ten blocks", "unprintable", "NUL", "too long", "blank", "empty"],
)
def test_replies_nobody_would_send_are_format_errors_at_once(reply):
    started = time.process_time()
    done = run([reply] * 5, max_format_errors=2)
    assert (done.reason, done.steps) == ("format_errors", ())
    assert time.process_time() - started < 5


def test_a_lone_surrogate_and_invalid_bytes_are_survived():
    surrogate = Response(b'{"choices": [{"message": {"content": "\\ud800"}}]}')
    done = run([surrogate, say("printf '\\xff\\xfe'"), STOP])
    assert done.reason == "context_full"
    assert "\ufffd\ufffd" in last_user_message()


def test_a_busy_or_failing_endpoint_is_asked_again():
    broken = JSONResponse({"error": {"type": "server_error"}}, 500)
    assert run([BUSY, broken, say("true"), SUBMIT]).reason == "submitted"


def test_no_answer_is_an_infrastructure_fault():
    with pytest.raises(EngineError, match="does not answer: it answered 503"):
        run([BUSY] * 10, patience=0.5)
    assert 2 <= len(REQUESTS) < 10

    async def nobody_there() -> None:
        nowhere = Endpoint(base_url="http://127.0.0.1:9/v1", api_key="x")
        await BashAgent(BashConfig(patience=0)).run(TASK, Folder(BoxSpec()), nowhere)

    with pytest.raises(EngineError, match="ConnectError"):
        asyncio.run(nobody_there())


def test_a_reply_that_is_no_completion_is_an_infrastructure_fault():
    with pytest.raises(EngineError, match="no chat completion"):
        run([Response(b"<html>")])


def test_a_refused_request_ends_the_attempt():
    with pytest.raises(AgentError, match="400"):
        run([JSONResponse({"error": {"type": "invalid_request_error"}}, 400)])


@pytest.mark.parametrize("status", [401, 402, 403, 404])
def test_an_endpoint_that_lets_nobody_in_is_not_the_agents_fault(status):
    with pytest.raises(EngineError, match=f"answered {status}.*check its address, its key"):
        run([JSONResponse({"error": {"type": "authentication_error"}}, status)])


def test_what_is_asked_for_is_what_the_config_says():
    run([STOP], max_tokens=7, temperature=0.5, system="", instance="{{ task.prompt }}")
    body = REQUESTS[0]
    assert (body["max_tokens"], body["temperature"]) == (7, 0.5)
    assert body["messages"] == [{"role": "user", "content": TASK.prompt}]
    run([STOP])
    assert not {"max_tokens", "temperature"} & REQUESTS[0].keys()


def test_runs_share_one_agent():
    async def main() -> list[AgentExit]:
        agent, boxes = BashAgent(), [Folder(BoxSpec()) for _ in range(8)]
        async with serve([SUBMIT] * 8) as endpoint:
            exits = await asyncio.gather(*(agent.run(TASK, box, endpoint) for box in boxes))
        await agent.close()
        await agent.close()
        return exits

    assert [done.reason for done in asyncio.run(main())] == ["submitted"] * 8


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"system": "{{ tsak }}"}, "template `system` names `tsak`; it may use config, task"),
        ({"observation": "{% if %}"}, "template `observation` is broken at line 1"),
    ],
)
def test_a_wrong_template_is_a_configuration_error(config, words):
    with pytest.raises(ConfigError, match=words):
        BashAgent(BashConfig(**config))


def test_fences_count_at_the_start_of_their_own_line_only():
    assert bash_blocks("a\n```bash\nls\n```\nb") == ["ls"]
    assert bash_blocks("```bash\r\nls\r\n```  ") == ["ls\r"]
    assert bash_blocks("say ```bash\nls\n```") == []
    assert bash_blocks("```python\nls\n```") == []
    assert bash_blocks("```bash\ncat <<E\n  ```\nx ```\n```py\nE\n```") == ["cat <<E\n  ```\nx ```\n```py\nE"]
    assert bash_blocks("```bash\nls") == []
    assert bash_blocks("```bash\na\n```\n```bash\nb\n```") == ["a", "b"]
