"""What a session answers when something is used up, broken, repeated, cut off or done twice at once."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from gateway_model import engine, renderer

from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.gateway import Budget, Gateway
from patchwright.types import Completion, Finish, Sampling

PATHS = ["chat/completions", "responses", "messages"]


def body_of(path: str, text: str, **more) -> dict:
    messages = [{"role": "user", "content": text}]
    return {"input" if path == "responses" else "messages": messages, **more}


def talk(test, model, keep_alive=10.0, **options):
    """Run a test with `post(path, text, ...)` and the session, which is handed back closed."""

    async def main():
        async with (
            Gateway(model, renderer(), keep_alive=keep_alive) as gateway,
            httpx.AsyncClient(timeout=60) as client,
        ):
            session = gateway.session("s", **options)

            async def post(path, text, headers=None, **more):
                key = {"authorization": f"Bearer {session.endpoint.api_key}"} | (headers or {})
                url = f"{session.endpoint.base_url}/{path}"
                return await client.post(url, json=body_of(path, text, **more), headers=key)

            await test(post, session)
            await session.close()
            return session

    return asyncio.run(asyncio.wait_for(main(), 60))


def error_of(response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["type"]


class Slow:
    """Answers when the gate opens, or fails for ever."""

    version, max_context = 0, 1000

    def __init__(self, fault: Exception | None = None) -> None:
        self.fault = fault
        self.gate = asyncio.Event()
        self.calls = 0
        self.asked = asyncio.Semaphore(0)

    async def generate(self, prompt_ids, sampling, *, on_tokens=None):
        self.calls += 1
        self.asked.release()
        if self.fault:
            raise self.fault
        await self.gate.wait()
        ids = (*renderer().encode("hello"), renderer().stop_ids[0])
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish=Finish.STOP, version=0)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_used_up_budget_of_calls_gives_the_stop_signal(path, stream):
    async def test(post, session):
        for number in range(2):
            assert (await post(path, f"{number}", stream=stream)).status_code == 200
        again = await post(path, "1", stream=stream, headers={"x-stainless-retry-count": "1"})
        assert again.status_code == 200, "a retry is answered from the record"
        for _ in range(2):
            assert error_of(await post(path, "more", stream=stream)) == (404, "not_found_error")
        assert session.stopped == "budget"

    assert len(talk(test, engine(["a", "b", "c"]), budget=Budget(calls=2)).turns) == 2


def test_of_several_choices_only_as_many_are_sampled_as_the_budget_has_left():
    async def test(post, session):
        for left in (2, 1):
            answer = await post("chat/completions", f"{left}", n=2)
            assert len(answer.json()["choices"]) == left
        assert error_of(await post("chat/completions", "more")) == (404, "not_found_error")

    assert len(talk(test, engine(["a", "b", "c"]), budget=Budget(calls=3)).turns) == 3


def test_a_budget_of_tokens_cuts_the_reply_that_would_exceed_it():
    async def test(post, session):
        assert (await post("chat/completions", "x")).json()["choices"][0]["finish_reason"] == "stop"
        cut = await post("chat/completions", "y", max_tokens=500)
        assert cut.json()["choices"][0]["finish_reason"] == "length"
        refused = await post("chat/completions", "z")
        assert error_of(refused) == (404, "not_found_error") and "tokens" in refused.text

    first = len(renderer().encode("hello")) + 1
    budget = Budget(tokens=first + 2)
    session = talk(test, engine(["hello", "hello world"]), budget=budget, sampling=Sampling(max_tokens=90))
    assert [len(turn.completion_ids) for turn in session.turns] == [first, 2]


@pytest.mark.parametrize("options", [{"calls": 0}, {"tokens": 0}, {"calls": -1}])
def test_an_empty_budget_is_a_mistake(options):
    with pytest.raises(ConfigError, match="at least 1"):
        Budget(**options)


@pytest.mark.parametrize(
    ("path", "kind"), list(zip(PATHS, ["server_error", "server_error", "api_error"], strict=True))
)
def test_an_engine_that_stays_broken_ends_the_session(path, kind):
    """Clients retry a 503 for minutes: after three failures they are told to stop. The rollout is void."""
    model = Slow(EngineError("the model process died"))

    async def test(post, session):
        for _ in range(3):
            assert error_of(await post(path, "x")) == (503, kind)
        assert error_of(await post(path, "x")) == (404, "not_found_error")
        assert session.stopped == "engine_failed"

    session = talk(test, model)
    assert model.calls == 3 and session.turns == ()
    assert isinstance(session.failure, EngineError)


@pytest.mark.parametrize("path", PATHS)
def test_a_call_after_close_gives_the_stop_signal(path):
    async def test(post, session):
        await session.close()
        assert error_of(await post(path, "x")) == (404, "not_found_error")

    assert talk(test, engine([])).turns == ()


def test_two_calls_at_once_are_both_answered_and_recorded():
    """A sub-agent may speak while the agent does: both continue the same turn."""
    model = Slow()

    async def test(post, session):
        both = [asyncio.create_task(post("chat/completions", text)) for text in ("a", "b")]
        for _ in range(2):
            await model.asked.acquire()
        model.gate.set()
        assert [response.status_code for response in await asyncio.gather(*both)] == [200, 200]

    session = talk(test, model)
    assert [turn.parent for turn in session.turns] == [None, None]


@pytest.mark.parametrize("path", PATHS)
def test_who_hangs_up_gets_the_same_sample_when_it_comes_back(path):
    model = Slow()

    async def test(post, session):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(post(path, "x", stream=True), 0.2)
        model.gate.set()
        response = await post(path, "x", stream=True)
        assert response.status_code == 200 and "hello" in response.text

    assert len(talk(test, model).turns) == 1 and model.calls == 1


@pytest.mark.parametrize(
    ("path", "sign"),
    list(zip(PATHS, [": keep-alive", "event: response.in_progress", "event: ping"], strict=True)),
)
def test_a_silent_stream_is_kept_alive_and_then_replayed(path, sign):
    """With tools nothing can be said before the reply is whole."""
    model = Slow()

    async def test(post, session):
        parameters = {"type": "object", "properties": {}}
        tool = {"type": "function", "name": "f", "input_schema": parameters,
                "function": {"name": "f", "parameters": parameters}}  # fmt: skip
        body, text = body_of(path, "x", stream=True, tools=[tool]), ""
        url = f"{session.endpoint.base_url}/{path}"
        key = {"authorization": f"Bearer {session.endpoint.api_key}"}
        async with (
            httpx.AsyncClient(timeout=60) as client,
            client.stream("POST", url, json=body, headers=key) as response,
        ):
            async for piece in response.aiter_text():
                text += piece
                if text.count(sign) >= 3:  # else the test's own time ends it
                    model.gate.set()
        assert text.rindex(sign) < text.index("hello")

    talk(test, model, keep_alive=0.05)


@pytest.mark.parametrize("path", PATHS)
def test_a_failure_in_the_middle_of_a_stream_is_told_in_it(path):
    class Breaking(Slow):
        async def generate(self, prompt_ids, sampling, *, on_tokens=None):
            on_tokens(renderer().encode("hello world"))
            await asyncio.sleep(0.1)
            raise EngineError("the model process died")

    async def test(post, session):
        response = await post(path, "x", stream=True)
        assert response.status_code == 200
        last = [line for line in response.text.splitlines() if line.startswith("data: ")][-1]
        assert "the model process died" in json.dumps(json.loads(last[6:]))

    assert isinstance(talk(test, Breaking()).failure, EngineError)


def test_a_queue_that_stays_full_is_a_503_that_does_not_end_the_session():
    """Tries over three seconds each; four at once, for more than three failures would end it."""
    model = Slow(EngineBusy("the queue is full"))

    async def test(post, session):
        answers = await asyncio.gather(*(post("chat/completions", f"{n}") for n in range(4)))
        assert {error_of(answer) for answer in answers} == {(503, "server_busy")}
        assert {answer.headers["retry-after"] for answer in answers} == {"1"}
        assert model.calls == 4 * 5 and session.stopped == ""
        model.fault = None
        model.gate.set()
        for number in range(4):
            assert (await post("chat/completions", f"{number}")).status_code == 200

    session = talk(test, model, budget=Budget(calls=4))
    assert len(session.turns) == 4 and session.failure is None, "retries mended it; what failed is free"


@pytest.mark.parametrize("path", PATHS)
def test_a_body_past_all_measure_is_refused_and_the_session_goes_on(path):
    async def test(post, session):
        huge = await post(path, "x" * (64 * 2**20 + 1))
        assert error_of(huge) == (413, "request_too_large") and "64 MB" in huge.text
        assert (await post(path, "x")).status_code == 200

    assert len(talk(test, engine(["a"])).turns) == 1
