"""Replies that servers stream: what comes when, and under which weights it was sampled."""

from __future__ import annotations

import asyncio

import pytest
from aiohttp import web
from tests.engine.model_servers import Server, talk

from patchwright.engine.vllm import VllmEngine
from patchwright.errors import EngineError
from patchwright.types import Finish, Sampling, Weights


class Waiting(Server):
    """Waits after the first token of a reply that is streamed."""

    def __init__(self) -> None:
        super().__init__(holds=True)
        self.go = asyncio.Event()

    async def halfway(self, response: web.StreamResponse) -> None:
        await self.go.wait()


def test_tokens_are_told_as_they_come():
    async def test(engine, server):
        told: list[list[int]] = []

        def tell(ids):
            told.append(list(ids))
            server.go.set()

        async with asyncio.timeout(30):
            done = await engine.generate([10, 11, 12], Sampling(max_tokens=9), on_tokens=tell)
        assert told == [[11], [12], [13]]
        assert (done.token_ids, done.logprobs, done.cached) == ((11, 12, 13), (-0.5,) * 3, 2)
        assert (done.finish, done.version, done.versions) == (Finish.STOP, 0, ())

    talk(VllmEngine, test, Waiting)


def test_each_token_has_the_version_that_sampled_it_or_an_older_one(tmp_path):
    """The one that comes next after an update may have been under way, so it counts as an older one's."""

    async def test(engine, server):
        came = asyncio.Event()
        asked = asyncio.create_task(
            engine.generate([10, 11, 12, 13], Sampling(max_tokens=9), on_tokens=lambda ids: came.set())
        )
        await came.wait()
        await engine.load(Weights(version=3, path=str(tmp_path)))
        server.go.set()
        done = await asked
        assert (done.token_ids, done.versions, done.version) == ((11, 12, 13, 14), (0, 0, 3, 3), 3)

    talk(VllmEngine, test, Waiting, updates=True)


@pytest.mark.parametrize("updates", [True, False])
def test_only_who_may_be_updated_streams_unasked(updates):
    async def test(engine, server):
        server.go.set()
        assert (await engine.generate([1, 2], Sampling(max_tokens=2))).finish is Finish.LENGTH
        assert server.asked[-1][1].get("stream", False) is updates

    talk(VllmEngine, test, Waiting, updates=updates)


class Failing(Server):
    """Says that it failed after the first token of a reply; `cut`: says nothing more."""

    def __init__(self, cut: bool) -> None:
        super().__init__()
        self.cut = cut

    async def halfway(self, response: web.StreamResponse) -> None:
        if not self.cut:
            await self._event(response, {"error": {"message": "out of memory", "code": 500}})
        raise ConnectionResetError


@pytest.mark.parametrize(("cut", "told"), [(False, "out of memory"), (True, "vLLM|the server")])
def test_a_reply_that_ends_in_the_middle_is_a_fault_of_the_engine(cut, told):
    async def test(engine, server):
        with pytest.raises(EngineError, match=told):
            await engine.generate([1, 2, 3], Sampling(), on_tokens=lambda ids: None)

    talk(VllmEngine, test, lambda: Failing(cut))


def test_a_prompt_that_is_told_back_in_one_long_line_is_read():
    async def test(engine, server):
        prompt = [100_000 + k for k in range(60_000)]  # 480 kB of JSON
        done = await engine.generate(prompt, Sampling(max_tokens=2), on_tokens=lambda ids: None)
        assert done.token_ids == (100_001, 100_002)

    talk(VllmEngine, test, lambda: Server(limit=100_000))
