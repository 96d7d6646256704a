"""Which tool, what form, how much thinking: an API is told, a model recorded by token refuses what it would
not keep."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from gateway_model import HERMES, engine, renderer
from test_gateway_api import Api, once, said
from test_gateway_api import talk as ask_api

from patchwright.gateway import Gateway

TOOL = {"name": "bash", "parameters": {"type": "object", "properties": {}}}
CHAT = [{"type": "function", "function": TOOL}]
FLAT = [{"type": "function", **TOOL}]
CLAUDE = [{"name": "bash", "input_schema": TOOL["parameters"]}]
NAMED = {"type": "function", "function": {"name": "bash"}}
FLAT_NAMED = {"type": "function", "name": "bash"}
CLAUDE_NAMED = {"type": "tool", "name": "bash"}
SCHEMA = {"type": "object"}
FORM = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
CALL = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    ("path", "asked", "told"),
    [
        ("chat/completions", {"tools": CHAT, "tool_choice": "required"}, {"tool_choice": "required"}),
        ("chat/completions", {"tools": CHAT, "tool_choice": NAMED}, {"tool_choice": NAMED}),
        ("chat/completions", {"tools": CHAT, "parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ("chat/completions", {"response_format": FORM}, {"response_format": FORM}),
        ("chat/completions", {"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ("responses", {"tools": FLAT, "tool_choice": FLAT_NAMED}, {"tool_choice": NAMED}),
        ("responses", {"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
        (
            "responses",
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
            {"response_format": FORM},
        ),
        ("messages", {"tools": CLAUDE, "tool_choice": {"type": "any"}}, {"tool_choice": "required"}),
        ("messages", {"tools": CLAUDE, "tool_choice": CLAUDE_NAMED}, {"tool_choice": NAMED}),
        (
            "messages",
            {"tools": CLAUDE, "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
            {"parallel_tool_calls": False},
        ),
        ("messages", {"output_config": {"effort": "low"}}, {"reasoning_effort": "low"}),
        (
            "messages",
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {"response_format": FORM | {"json_schema": {"name": "answer", "schema": SCHEMA}}},
        ),
    ],
)  # fmt: skip
def test_an_api_is_told_in_the_words_of_chat_completions(path, asked, told):
    api = Api()
    test = once(path, max_tokens=9, **asked)
    ask_api(api, test)
    assert test.response.status_code == 200
    words = ("tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort")
    assert {word: api.bodies[0][word] for word in words if word in api.bodies[0]} == told


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
def test_an_api_is_not_told_what_it_does_anyway_nor_of_tools_that_are_not_there(path):
    api = Api()
    form = {"response_format": {"type": "text"}, "text": {"format": {"type": "text"}}}
    ask_api(api, once(path, tool_choice="auto", parallel_tool_calls=True, **form))
    ask_api(api, once(path, tool_choice="none"))
    assert all(set(body) == {"model", "messages"} for body in api.bodies)


def test_the_log_probs_of_an_api_are_handed_on():
    answer = said("hi")
    token = {"token": "hi", "logprob": -0.5, "bytes": None, "top_logprobs": []}
    answer["choices"][0]["logprobs"] = {"content": [token]}
    api = Api(answer, said("hi"))
    test = once(logprobs=True)
    session = ask_api(api, test)
    assert test.response.json()["choices"][0]["logprobs"]["content"][0]["logprob"] == -0.5
    assert api.bodies[0]["logprobs"] is True and session.turns[0].logprobs == ()
    test = once(logprobs=True)
    ask_api(api, test)  # it told none
    assert test.response.json()["choices"][0]["logprobs"] is None


def ask(path, body, replies, *, session=True):
    """The answer of a model recorded by token, and the turns."""

    async def main():
        voice = renderer(HERMES)
        async with (
            Gateway(engine(replies, HERMES), voice) as gateway,
            httpx.AsyncClient(timeout=60) as client,
        ):
            made = gateway.session("s")
            endpoint = made.endpoint if session else gateway.endpoint
            key = {"authorization": f"Bearer {endpoint.api_key}"}
            hi = {"input" if path == "responses" else "messages": [{"role": "user", "content": "hi"}]}
            answer = await client.post(f"{endpoint.base_url}/{path}", json=hi | body, headers=key)
            await made.close()
            return answer, made.turns

    return asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize(
    ("path", "body", "word"),
    [
        ("chat/completions", {"tools": CHAT, "tool_choice": "required"}, "`tool_choice` can be auto or none"),
        ("chat/completions", {"tools": CHAT, "tool_choice": NAMED}, "`tool_choice` can be auto or none"),
        ("messages", {"tools": CLAUDE, "tool_choice": {"type": "any"}}, "`tool_choice` can be auto or none"),
        ("chat/completions", {"response_format": {"type": "json_object"}}, "`response_format` json_object"),
        ("responses", {"text": {"format": {"type": "json_object"}}}, "`response_format` json_object"),
        ("chat/completions", {"tool_choice": "always"}, "`tool_choice` must be"),
        ("chat/completions", {"tool_choice": {"type": []}}, "`tool_choice` must be"),
        ("messages", {"tool_choice": {"type": "tool"}}, "`tool_choice` must be"),
        ("messages", {"tool_choice": {"type": ["x"]}}, "`tool_choice` must be"),
        ("chat/completions", {"response_format": "json"}, "`response_format` must be"),
        ("chat/completions", {"parallel_tool_calls": 1}, "`parallel_tool_calls` must be"),
        ("chat/completions", {"reasoning_effort": 3}, "`reasoning_effort` must be"),
        ("responses", {"reasoning": "much"}, "`reasoning` must be"),
        ("responses", {"text": []}, "`text` must be"),
    ],
)
def test_a_recorded_model_says_what_it_would_not_keep(path, body, word):
    answer, turns = ask(path, body, ["hello"])
    assert answer.status_code == 400 and turns == ()
    message = answer.json()["error"]["message"]
    assert word in message and "\n" not in message


def test_how_much_is_thought_is_the_sessions_affair_and_without_one_refused():
    answer, turns = ask("chat/completions", {"reasoning_effort": "high"}, ["hello"])
    assert answer.status_code == 200 and len(turns) == 1
    answer, _ = ask("chat/completions", {"reasoning_effort": "high"}, ["hello"], session=False)
    assert answer.status_code == 400 and "`reasoning_effort`" in answer.json()["error"]["message"]


def test_without_calls_the_tools_stay_in_the_prompt_and_a_call_is_text():
    body = {"tools": CHAT, "messages": [{"role": "user", "content": "hi"}]}
    free, turns = ask("chat/completions", body, [CALL])
    assert free.json()["choices"][0]["message"]["tool_calls"]
    bound, same = ask("chat/completions", body | {"tool_choice": "none"}, [CALL])
    message = bound.json()["choices"][0]["message"]
    assert "tool_calls" not in message and "bash" in message["content"]
    assert bound.json()["choices"][0]["finish_reason"] == "stop"
    assert same[0].prompt_ids == turns[0].prompt_ids
