"""The gateway's manners: keys, bad requests, retries, disconnects, engine faults, the stop signal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest
from gateway_model import engine, renderer

from patchwright.engine.base import Engine
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.gateway import Gateway, Session
from patchwright.types import Completion, Finish

BODY = {"model": "policy", "messages": [{"role": "user", "content": "fix"}]}
Post = Callable[..., Awaitable[httpx.Response]]


def serve(test: Callable[[Post, Session, Gateway], Awaitable[None]], model: Engine) -> Session:
    """Run a test with `post(body, key=..., path=...)`; the session, closed, is handed back."""

    async def main() -> Session:
        async with Gateway(model, renderer()) as gateway, httpx.AsyncClient(timeout=30) as client:
            session = gateway.session("s")

            async def post(body, key=session.endpoint.api_key, base=session.endpoint.base_url, **headers):
                content = body if isinstance(body, bytes) else json.dumps(body).encode()
                headers = {"authorization": f"Bearer {key}"} | {
                    name.replace("_", "-"): value for name, value in headers.items()
                }
                return await client.post(f"{base}/chat/completions", content=content, headers=headers)

            await test(post, session, gateway)
            await session.close()
            return session

    return asyncio.run(asyncio.wait_for(main(), 60))


class Gate:
    """An engine that answers only when told to, or with the faults it is given first."""

    version, max_context = 0, 1000

    def __init__(self, *faults: Exception) -> None:
        self.faults = list(faults)
        self.open = asyncio.Event()
        self.calls = 0
        self.aborted = 0
        self.asked = asyncio.Event()

    async def generate(self, prompt_ids, sampling, *, on_tokens=None):
        self.calls += 1
        self.asked.set()
        number = self.calls
        if self.faults:
            raise self.faults.pop(0)
        try:
            await self.open.wait()
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        ids = (*renderer().encode(f"reply {number}"), renderer().stop_ids[0])
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish=Finish.STOP, version=0)


def text_of(response: httpx.Response) -> str:
    return response.json()["choices"][0]["message"]["content"]


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["type"]


def test_every_door_needs_its_own_key():
    async def test(post, session, gateway):
        for key in ("w", "wrong", gateway.api_key):
            assert error_of(await post(BODY, key=key)) == (401, "authentication_error")
        public = f"{gateway.url}/v1"
        assert error_of(await post(BODY, key=session.endpoint.api_key, base=public))[0] == 401
        assert text_of(await post(BODY, key=gateway.api_key, base=public)) == "a"
        assert text_of(await post(BODY)) == "b"
        async with httpx.AsyncClient(timeout=60) as client:
            assert (await client.get(f"{gateway.url}/healthz")).status_code == 200
            assert (await client.get(f"{session.endpoint.base_url}/models")).status_code == 401
            key = {"authorization": f"Bearer {session.endpoint.api_key}"}
            models = await client.get(f"{session.endpoint.base_url}/models", headers=key)
            assert models.json()["data"][0]["id"] == "policy"
            for path in ("models/policy", "models/gpt", "embeddings", "chat/completions"):
                status = 200 if path == "models/policy" else 404
                answer = await client.get(f"{session.endpoint.base_url}/{path}", headers=key)
                assert answer.status_code == status
                said = answer.json()
                assert said["id"] == "policy" if status == 200 else said["error"]["type"] == "not_found_error"

    assert len(serve(test, engine(["a", "b"])).turns) == 1


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"{", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[]", "object"),
        ({"model": "policy"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "god", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": 3}]}, "content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": {}}]}]}, "tool_calls"),
        (BODY | {"n": 0}, "`n`"),
        (BODY | {"n": 129}, "`n`"),
        (BODY | {"max_tokens": 0}, "max_tokens"),
        (BODY | {"max_tokens": "3"}, "max_tokens"),
        (BODY | {"temperature": -1}, "temperature"),
        (BODY | {"temperature": float("nan")}, "temperature"),
        (BODY | {"stop": [3]}, "stop"),
        (BODY | {"stop": ["x"] * 17}, "at most 16"),
        (BODY | {"seed": 2**63}, f"at most {2**63 - 1}"),
        (BODY | {"top_p": 1.1}, "at least 0 and at most 1"),
        (BODY | {"max_tokens": 10**400}, "max_tokens"),
        (BODY | {"tools": [{}]}, "tools"),
    ],
)
def test_a_bad_request_is_told_what_is_wrong(body, word):
    async def test(post, session, gateway):
        response = await post(body)
        assert error_of(response) == (400, "invalid_request_error")
        assert word in response.json()["error"]["message"]
        assert text_of(await post(BODY)) == "fine"

    assert len(serve(test, engine(["fine"])).turns) == 1


def test_large_strange_and_unencodable_bodies():
    async def test(post, session, gateway):
        large = {"messages": [{"role": "user", "content": "hello " * 200_000}]}
        assert error_of(await post(large)) == (404, "not_found_error")  # 1.2 MB: served, but no room
        assert session.stopped == "context_full"
        strange = {"messages": [{"role": "user", "content": "\ud800\x00\u202e"}], "unknown": {"a": 1}}
        assert text_of(await post(strange)) == "a"
        assert (await post(b"x" * (65 * 2**20))).status_code == 413

    serve(test, engine(["a"], max_context=1000))


def test_a_retry_gets_the_recorded_answer_and_a_new_question_is_sampled():
    async def test(post, session, gateway):
        assert text_of(await post(BODY, x_stainless_retry_count="0")) == "a"
        assert text_of(await post(BODY, x_stainless_retry_count="1")) == "a"
        assert text_of(await post(BODY, x_stainless_retry_count="0")) == "b"

    turns = serve(test, engine(["a", "b"])).turns
    assert [(turn.parent, turn.text) for turn in turns] == [(None, "a"), (None, "b")]


def test_the_same_request_in_flight_is_sampled_once():
    gate = Gate()

    async def test(post, session, gateway):
        came, call = asyncio.Semaphore(0), session.call

        def counted(*given, **how):
            came.release()
            return call(*given, **how)

        session.call = counted
        both = asyncio.gather(post(BODY), post(BODY))
        for _ in range(2):
            await came.acquire()
        gate.open.set()
        assert [text_of(response) for response in await both] == ["reply 1", "reply 1"]

    assert len(serve(test, gate).turns) == 1
    assert gate.calls == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_nobody_waited_for_is_recorded_and_given_to_the_retry(stream):
    gate = Gate()

    async def test(post, session, gateway):
        body = BODY | {"stream": stream}
        asking = asyncio.create_task(post(body))
        await gate.asked.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        gate.open.set()
        while not session.turns:  # noqa: ASYNC110 - the test's own time bounds it
            await asyncio.sleep(0.01)
        assert len(session.turns) == 1
        assert (await post(body)).status_code == 200

    assert len(serve(test, gate).turns) == 1
    assert gate.calls == 1


def test_a_busy_engine_is_asked_again():
    gate = Gate(EngineBusy("full"), EngineBusy("full"))
    gate.open.set()

    async def test(post, session, gateway):
        assert text_of(await post(BODY)) == "reply 3"

    assert serve(test, gate).failure is None


def test_an_engine_fault_voids_the_session_until_a_retry_mends_it():
    gate = Gate(EngineError("the model process died"), EngineError("died again"))
    gate.open.set()

    async def test(post, session, gateway):
        for other in (BODY, {"messages": [{"role": "user", "content": "other"}]}):
            response = await post(other)
            assert error_of(response) == (503, "server_error")
            assert response.headers["retry-after"] == "1"
        assert str(session.failure) == "the model process died"
        assert text_of(await post(BODY, x_stainless_retry_count="1")) == "reply 3"

    assert str(serve(test, gate).failure) == "died again"  # the other request was never asked again


def test_a_full_context_and_a_closed_session_give_the_stop_signal():
    async def test(post, session, gateway):
        long = {"messages": [{"role": "user", "content": "hello " * 100}]}
        for _ in range(2):
            response = await post(long)
            assert error_of(response) == (404, "not_found_error")
            assert "context is full" in response.json()["error"]["message"]
        assert session.stopped == "context_full"
        await session.close()
        assert error_of(await post(BODY)) == (404, "not_found_error")

    assert serve(test, engine(["a"], max_context=64)).turns == ()


@pytest.mark.parametrize("stream", [False, True])
def test_closing_a_session_aborts_what_is_in_flight(stream):
    gate = Gate()

    async def test(post, session, gateway):
        waiting = asyncio.create_task(post(BODY | {"stream": stream}))
        await gate.asked.wait()
        await session.close()
        assert error_of(await waiting) == (404, "not_found_error")

    assert serve(test, gate).turns == ()
    assert gate.aborted == 1


def test_a_template_that_refuses_a_conversation_is_the_clients_fault():
    strict = "{{ raise_exception('roles must alternate') }}"

    async def main():
        async with (
            Gateway(engine(["a"]), renderer(strict)) as gateway,
            httpx.AsyncClient(timeout=60) as client,
        ):
            key = {"authorization": f"Bearer {gateway.api_key}"}
            response = await client.post(f"{gateway.url}/v1/chat/completions", json=BODY, headers=key)
            assert error_of(response) == (400, "invalid_request_error")
            assert "roles must alternate" in response.text

    asyncio.run(main())


def test_a_session_has_its_own_engine_and_tells_every_turn():
    turns = []

    async def main():
        async with Gateway(engine([]), renderer()) as gateway, httpx.AsyncClient(timeout=60) as client:
            session = gateway.session("expert", engine=engine(["mine"]), on_turn=turns.append)
            with pytest.raises(ConfigError, match="open already"):
                gateway.session("expert")
            key = {"authorization": f"Bearer {session.endpoint.api_key}"}
            url = f"{session.endpoint.base_url}/chat/completions"
            assert text_of(await client.post(url, json=BODY, headers=key)) == "mine"
            await session.close()
            assert gateway.session("expert").turns == ()

    asyncio.run(main())
    assert [turn.text for turn in turns] == ["mine"]


def test_a_taken_port_is_a_configuration_error():
    async def main():
        async with Gateway(engine([]), renderer()) as first:
            port = int(first.url.rsplit(":", 1)[1])
            second = Gateway(engine([]), renderer(), port=port)
            with pytest.raises(ConfigError, match="cannot listen"):
                await second.start()
            await second.close()

    asyncio.run(main())


class Trickle(Gate):
    """Gives its reply's ids one by one, the second when the first has come, the last when the gate opens."""

    def __init__(self):
        super().__init__()
        self.begun = asyncio.Event()

    async def generate(self, prompt_ids, sampling, *, on_tokens=None):
        ids = (*renderer().encode("one € two"), renderer().stop_ids[0])
        for token in ids[:-1]:
            on_tokens([token])
            await self.begun.wait()
        await self.open.wait()
        on_tokens(ids[-1:])
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish=Finish.STOP, version=0)


def test_tokens_are_streamed_as_they_are_sampled():
    gate = Trickle()

    async def main():
        async with Gateway(gate, renderer()) as gateway, httpx.AsyncClient(timeout=60) as client:
            session = gateway.session("s")
            request = client.stream(
                "POST",
                f"{session.endpoint.base_url}/chat/completions",
                json=BODY | {"stream": True},
                headers={"authorization": f"Bearer {session.endpoint.api_key}"},
            )
            texts = []
            async with request as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        texts.append(json.loads(line[6:])["choices"][0]["delta"].get("content", ""))
                    if "".join(texts):
                        gate.begun.set()
                    if "".join(texts) == "one € two":
                        gate.open.set()
            return texts

    texts = asyncio.run(asyncio.wait_for(main(), 60))
    assert "".join(texts) == "one € two"
    assert len([text for text in texts if text]) > 1
    assert not any("\ufffd" in text for text in texts)


def test_without_a_session_the_request_decides_how_to_sample():
    seen = []

    class Listening(Gate):
        async def generate(self, prompt_ids, sampling, *, on_tokens=None):
            seen.append(sampling)
            return await super().generate(prompt_ids, sampling, on_tokens=on_tokens)

    async def main():
        model = Listening()
        model.open.set()
        async with (
            Gateway(model, renderer(), api_key="k") as gateway,
            httpx.AsyncClient(timeout=60) as client,
        ):
            assert gateway.endpoint.api_key == "k"
            body = BODY | {"temperature": 0, "top_p": 0.5, "seed": 7, "max_completion_tokens": 9}
            headers = {"authorization": "Bearer k"}
            url = f"{gateway.endpoint.base_url}/chat/completions"
            assert (await client.post(url, json=body, headers=headers)).status_code == 200

    asyncio.run(main())
    assert [(s.temperature, s.top_p, s.seed, s.max_tokens) for s in seen] == [(0, 0.5, 7, 9)]


def test_a_long_session_keeps_only_its_latest_requests():
    async def test(post, session, gateway):
        for number in range(30):
            await post({"messages": [{"role": "user", "content": f"{number}"}]})
        assert len(session._calls) <= 8

    assert len(serve(test, engine(lambda prompt: "a")).turns) == 30
