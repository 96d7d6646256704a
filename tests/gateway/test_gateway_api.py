"""Somebody's chat API behind the gateway: all formats, recorded as text, bounded, retried, not trained on."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from email.utils import formatdate

import httpx
import pytest
from aiohttp import web

from patchwright.engine.config import EngineConfig
from patchwright.engine.openai import ApiModel, retry_after
from patchwright.errors import ConfigError, EngineError
from patchwright.gateway import Budget, Gateway
from patchwright.train.samples import samples
from patchwright.types import Endpoint, Finish, Sampling, Trajectory, Usage

PATHS = ["chat/completions", "responses", "messages"]
CALL = {"id": "up-1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}
TOOL = {"name": "bash", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": TOOL, "input_schema": TOOL["parameters"], **TOOL}]
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 60}}


def said(content="hello", finish="stop", **message) -> dict:
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    return {"id": "x", "choices": [choice | {"finish_reason": finish}], "usage": USAGE}


def refusal(status: int, message: str, **headers: str) -> web.Response:
    error = {"error": {"message": message, "type": "some_error"}}
    return web.json_response(
        error, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()}
    )


class Api:
    """Answers from a list, then `hello`; keeps what it was asked."""

    def __init__(self, *answers) -> None:
        self.answers = list(answers)
        self.bodies: list[dict] = []
        self.keys: set[str] = set()
        self.times: list[float] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(json.loads(await request.text()))
        self.keys.add(request.headers.get("authorization", ""))
        self.times.append(time.monotonic())
        answer = self.answers.pop(0) if self.answers else said()
        return web.json_response(answer) if isinstance(answer, dict) else answer


@contextlib.asynccontextmanager
async def serving(api: Api):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", api.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


def talk(api: Api, test, *, retries=2, given=(), **options):
    """Run a test with `post(path, messages, ...)` and the session, which is handed back closed."""

    async def main():
        async with serving(api) as url, httpx.AsyncClient(timeout=60) as client:
            endpoint = Endpoint(base_url=url, api_key="secret", model="m-1")
            model = ApiModel(endpoint, retries=retries, given=given)
            try:
                async with Gateway(model, model="m-1") as gateway:
                    session = gateway.session("s", **options)

                    async def post(path, messages, **more):
                        if isinstance(messages, str):
                            messages = [{"role": "user", "content": messages}]
                        key = {"authorization": f"Bearer {session.endpoint.api_key}"}
                        body = {"input" if path == "responses" else "messages": messages, **more}
                        return await client.post(
                            f"{session.endpoint.base_url}/{path}", json=body, headers=key
                        )

                    await test(post, session)
                    await session.close()
                    return session
            finally:
                await model.close()

    return asyncio.run(asyncio.wait_for(main(), 60))


def error_of(response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["type"]


def once(path="chat/completions", words="hi", **more):
    async def test(post, session):
        test.response = await post(path, words, **more)

    return test


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_every_format_gets_text_thinking_and_calls_and_one_recorded_turn(path, stream):
    api = Api(said("look", "tool_calls", tool_calls=[CALL], reasoning_content="so so"))
    test = once(path, stream=stream, tools=TOOLS, max_tokens=50, max_output_tokens=50)
    session = talk(api, test)
    assert test.response.status_code == 200
    for word in ("look", "so so", "bash"):
        assert word in test.response.text
    (turn,) = session.turns
    assert (turn.text, turn.finish) == ('look\nbash({"command": "ls"})', Finish.STOP)
    assert turn.usage == Usage(prompt=100, cached=60, completion=10)
    assert turn.completion_ids == turn.prompt_ids == turn.logprobs == () and not turn.train
    assert session.messages[-1]["reasoning_content"] == "so so"
    assert samples(Trajectory(id="a", task_id="t", turns=session.turns)) == []
    (body,) = api.bodies
    assert (body["model"], body["max_tokens"], "stream" in body) == ("m-1", 50, False)
    assert body["tools"][0]["function"]["name"] == "bash" and api.keys == {"Bearer secret"}


def test_calls_go_back_under_the_ids_the_api_gave_and_other_keys_do_not():
    api = Api(said(None, "tool_calls", tool_calls=[CALL]))

    async def test(post, session):
        user = {"role": "user", "content": "hi"}
        message = (await post("chat/completions", [user], tools=TOOLS)).json()["choices"][0]["message"]
        (call,) = message["tool_calls"]
        assert call["id"] != "up-1"
        result = {"role": "tool", "tool_call_id": call["id"], "content": "mod.py"}
        call["index"] = 0
        await post("chat/completions", [user, message | {"provider": 1}, result], tools=TOOLS)

    session = talk(api, test)
    assert api.bodies[1]["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "up-1", "content": "mod.py"},
    ]
    assert [(turn.parent, turn.drift) for turn in session.turns] == [(None, ()), (0, ())]


def test_what_an_agent_changes_is_named_and_side_calls_are_marked():
    async def test(post, session):
        def main(reply):
            return [
                {"role": "system", "content": "You repair software, carefully."},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": reply},
                {"role": "user", "content": "go on"},
            ]

        title = [{"role": "system", "content": "Titles."}, {"role": "user", "content": "hi"}]
        await post("chat/completions", title)
        await post("chat/completions", main("")[:2])
        await post("chat/completions", main("hello  "))

    session = talk(Api(), test)
    assert [turn.drift for turn in session.turns] == [("side_call",), (), ("whitespace",)]
    assert session.messages[0]["content"].startswith("You repair") and len(session.messages) == 5


def test_a_budget_of_calls_and_tokens_holds_for_an_api():
    async def test(post, session):
        for _ in range(2):
            assert (await post("chat/completions", "hi")).status_code == 200
        assert error_of(await post("chat/completions", "hi")) == (404, "not_found_error")
        assert session.stopped == "budget"

    for budget in (Budget(calls=2), Budget(tokens=20)):
        api = Api()
        assert len(talk(api, test, budget=budget).turns) == 2
    assert [body["max_tokens"] for body in api.bodies] == [20, 10], "what is left of the tokens"


@pytest.mark.parametrize(
    ("given", "expected"),
    [((), {"temperature": 0.3}), (("temperature", "max_tokens"), {"temperature": 0.7, "max_tokens": 90})],
)
def test_an_api_is_told_what_the_user_said_and_else_what_the_agent_asks(given, expected):
    api = Api()
    talk(api, once(temperature=0.3), given=given, sampling=Sampling(temperature=0.7, max_tokens=90))
    wanted = {key: api.bodies[0].get(key) for key in ("temperature", "max_tokens", "top_p", "seed")}
    assert {key: value for key, value in wanted.items() if value is not None} == expected


def test_without_a_session_the_request_decides_and_nothing_is_recorded():
    api = Api()

    async def main():
        async with serving(api) as url, httpx.AsyncClient(timeout=60) as client:
            model = ApiModel(Endpoint(base_url=url, api_key="", model="m-1"), given=("temperature",))
            async with Gateway(model, api_key="k") as gateway:
                base, key = f"{gateway.url}/v1", {"authorization": "Bearer k"}
                body = {"messages": [{"role": "user", "content": "x" * 400}], "temperature": 0.1}
                assert (
                    await client.post(f"{base}/chat/completions", json=body, headers=key)
                ).status_code == 200
                counted = await client.post(f"{base}/messages/count_tokens", json=body, headers=key)
                assert counted.json() == {"input_tokens": 100}, "a guess"
                raw = await client.post(f"{base}/completions", json={"prompt": "x"}, headers=key)
                assert error_of(raw) == (400, "invalid_request_error") and "conversations" in raw.text
                assert "max_model_len" not in (await client.get(f"{base}/models", headers=key)).text
            await model.close()

    asyncio.run(main())
    assert [body["temperature"] for body in api.bodies] == [0.1] and api.keys == {""}


# --- bad weather ------------------------------------------------------------------------------


def test_busy_and_broken_answers_are_tried_again_after_the_time_the_api_asks_for():
    api = Api(
        refusal(429, "slow down", retry_after="0.3"),
        refusal(500, "oops", retry_after_ms="10"),
        refusal(503, "soon", retry_after="0"),
    )
    test = once()
    session = talk(api, test, retries=3)
    assert test.response.status_code == 200 and session.failure is None and len(session.turns) == 1
    assert api.times[1] - api.times[0] >= 0.29
    assert len(api.bodies) == 4 and api.bodies[0] == api.bodies[-1]


def test_the_time_an_api_asks_for_is_a_number_or_a_date_within_reason():
    for said, seconds in (
        ("2.5", 2.5),
        ("0", 0),
        ("-3", 0),
        ("1e9", 600),
        ("", None),
        ("soon", None),
        ("nan", None),
    ):
        assert retry_after({"retry-after": said}) == seconds
    assert 80 < retry_after({"retry-after": formatdate(time.time() + 90, usegmt=True)}) <= 90
    assert retry_after({"retry-after": formatdate(0, usegmt=True)}) == 0
    assert retry_after({"retry-after": "9", "retry-after-ms": "1500"}) == 1.5


@pytest.mark.parametrize(
    "answer",
    [
        {"choices": []},
        {"error": {"message": "upstream"}},
        web.Response(text="<html>"),
        web.Response(status=302, headers={"location": "/other"}),
    ],
)
def test_nonsense_is_tried_again_too(answer):
    test = once()
    session = talk(Api(answer), test, retries=1)
    assert test.response.status_code == 200 and session.failure is None


def test_an_api_that_stays_broken_voids_the_attempt_and_stops_the_agent():
    async def test(post, session):
        assert error_of(await post("chat/completions", "hi"))[0] == 503
        assert error_of(await post("chat/completions", "hi")) == (404, "not_found_error")
        assert session.stopped == "engine_failed"

    api = Api(*(refusal(500, "oops", retry_after="0") for _ in range(9)))
    session = talk(api, test, retries=2)
    assert len(api.bodies) == 3
    assert isinstance(session.failure, EngineError) and "in 3 tries: it answered 500" in str(session.failure)


@pytest.mark.parametrize(
    "answer",
    [
        *((status, "no") for status in (401, 402, 403, 404)),
        (429, '{"code": "insufficient_quota"}'),
    ],
)
def test_no_key_no_money_no_model_is_not_tried_again(answer):
    api = Api(refusal(*answer))
    session = talk(api, once())
    assert len(api.bodies) == 1
    assert f"answered {answer[0]}; check its address, its key" in str(session.failure)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "This model's maximum context length is 8192 tokens."),
        (400, "prompt is too long: 210000 tokens > 200000 maximum"),
        (404, "the context is full: the prompt has 90 tokens and the model takes 80"),
        (413, "Request Entity"),
    ],
)
def test_a_conversation_that_is_too_long_gives_the_stop_signal_and_a_shorter_one_an_answer(status, words):
    async def test(post, session):
        assert error_of(await post("chat/completions", "long")) == (404, "not_found_error")
        assert session.stopped == "context_full"
        assert (await post("chat/completions", "short")).status_code == 200

    session = talk(Api(refusal(status, words)), test)
    assert len(session.turns) == 1 and session.failure is None


def test_a_request_the_api_refuses_is_the_agents_mistake():
    api = Api(refusal(400, "`tools` has 200 entries, at most 128 are allowed"))
    test = once()
    session = talk(api, test)
    assert error_of(test.response) == (400, "invalid_request_error") and "at most 128" in test.response.text
    assert session.failure is None and len(api.bodies) == 1


def test_the_newer_name_of_the_bound_is_learnt_once():
    api = Api(refusal(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."))

    async def test(post, session):
        for _ in range(2):
            assert (await post("chat/completions", "hi", max_tokens=7)).status_code == 200

    talk(api, test)
    assert [body.get("max_tokens") for body in api.bodies] == [7, None, None]
    assert [body.get("max_completion_tokens") for body in api.bodies] == [None, 7, 7]


def test_an_api_that_says_nonsense_about_a_choice_is_taken_as_it_can_be():
    odd = {"choices": [{"message": {"content": [{"text": "a"}, 3], "tool_calls": [3, {"function": {}}]}}]}
    odd["choices"][0]["message"]["tool_calls"].append({"function": {"name": "f", "arguments": {"x": 1}}})
    test = once(tools=TOOLS)
    session = talk(Api(odd | {"usage": {"prompt_tokens": "9", "completion_tokens": -1}}), test)
    message = test.response.json()["choices"][0]["message"]
    assert message["content"] == "a" and message["tool_calls"][0]["function"]["arguments"] == '{"x": 1}'
    assert session.turns[0].usage == Usage()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": ""}, "https://api.openai.com/v1"),
        ({"url": "http://h/v1", "key_env": "NO_SUCH_KEY"}, "NO_SUCH_KEY"),
    ],
)
def test_a_section_that_names_no_api_is_a_mistake(options, word):
    with pytest.raises(ConfigError, match=word):
        ApiModel.of(EngineConfig(use="openai", **options), "m-1")
