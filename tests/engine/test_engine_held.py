"""Servers are held while they take weights, and go on after it, whatever happens."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from tests.engine.model_servers import BOTH, Server, serving, talk

from patchwright.engine.config import EngineConfig
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import ConfigError, EngineError
from patchwright.recipes.engines import open_engine
from patchwright.types import Sampling, Weights


@BOTH
def test_a_server_is_held_while_it_takes_weights_and_goes_on_whatever_happens(cls, tmp_path):
    async def test(engine, server):
        del server.asked[:]
        await engine.load(Weights(version=3, path=str(tmp_path)))
        paths = [path for path, _ in server.asked]
        assert "/pause" in paths[0] and len(paths) >= 3 and not server.held
        assert paths[-1] in ("/resume", "/continue_generation")
        server.faults = [web.json_response({"success": False, "message": "no"}, status=500)]
        with pytest.raises(EngineError, match="no"):
            await engine.load(Weights(version=4, path=str(tmp_path)))
        assert not server.held and server.asked[-1][0] == paths[-1]

    talk(cls, test, lambda: Server(holds=True))


def test_a_vllm_that_would_abort_is_not_held(tmp_path):
    class Old(Server):
        async def hold(self, request: web.Request) -> web.Response:
            raise AssertionError("its pause aborts")

    async def test(engine, server):
        await engine.load(Weights(version=3, path=str(tmp_path)))
        assert engine.version == 3

    talk(VllmEngine, test, Old)


@BOTH
def test_a_load_that_is_given_up_leaves_no_server_held(cls, tmp_path):
    async def test(engine, server):
        held = asyncio.create_task(engine.load(Weights(version=3, path=str(tmp_path))))
        while not server.held:  # noqa: ASYNC110
            await asyncio.sleep(0)
        held.cancel()
        await asyncio.gather(held, return_exceptions=True)
        assert not server.held and engine.version == 0

    talk(cls, test, lambda: Server(holds=True))


class Held(Server):
    """Left held by a run that was killed while it loaded weights."""

    def __init__(self) -> None:
        super().__init__(holds=True)
        self.held = True

    async def _asked(self, request: web.Request) -> dict:
        while self.held and request.path in ("/v1/completions", "/generate"):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return await super()._asked(request)


@BOTH
def test_a_server_that_was_left_held_goes_on_for_a_run_that_loads_weights(cls):
    """Others must not let it go: it may be held for a load that is under way."""

    async def main():
        server = Held()
        async with serving(server) as url:
            config = EngineConfig(use=cls.name.lower(), url=url)
            brief = config.model_copy(update={"start_seconds": 0.2})
            with pytest.raises(ConfigError, match=f"left it held: POST {cls.go_on[0]}"):
                async with open_engine(Path("m"), brief, updates=False):
                    pass
            assert server.held
            async with open_engine(Path("m"), config) as engine:
                assert (await engine.generate([1], Sampling())).token_ids == (2,) and not server.held

    asyncio.run(asyncio.wait_for(main(), 60))


@pytest.mark.parametrize("busy", [False, True])
def test_a_vllm_that_does_not_say_whether_it_can_be_held_takes_no_weights(busy, tmp_path, monkeypatch):
    class Silent(Server):
        async def calls(self, request: web.Request) -> web.Response:
            if not busy:
                await asyncio.sleep(60)
            return web.Response(status=503, text="later")

    async def test(engine, server):
        monkeypatch.setattr("patchwright.engine.http._HOLD", 30 if busy else 0.2)
        with pytest.raises(EngineError, match="later" if busy else "whether it can be held"):
            await engine.load(Weights(version=3, path=str(tmp_path)))
        assert "/collective_rpc" not in [path for path, _ in server.asked] and engine.version == 0

    talk(VllmEngine, test, lambda: Silent(holds=True))
