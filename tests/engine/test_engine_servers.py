"""vLLM and SGLang as engines, against small servers that speak their wire formats."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import nullcontext

import pytest
from aiohttp import web

from patchwright.engine.config import EngineConfig
from patchwright.engine.sglang import SglangEngine
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.recipes.assembly import SamplingConfig
from patchwright.recipes.rl import refuse_truncation
from patchwright.types import Finish, Sampling, Weights

BOTH = pytest.mark.parametrize("cls", [VllmEngine, SglangEngine])


class Server:
    """Answers every prompt with its ids, one higher each; keeps what it was asked. `raw`: its log-probs are
    not those of what is left by top-p."""

    def __init__(self, limit: int | None = 100, raw: bool = False) -> None:
        self.limit, self.raw = limit, raw
        self.asked: list[tuple[str, dict]] = []
        self.faults: list[web.Response] = []
        self.hang = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def models(self, request: web.Request) -> web.Response:
        model = {"id": "served", "object": "model"} | ({"max_model_len": self.limit} if self.limit else {})
        return web.json_response({"object": "list", "data": [model]})

    async def _asked(self, request: web.Request) -> dict:
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.path, body))
        self.key = request.headers.get("authorization", "")
        if self.hang.is_set():
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                self.hung_up.set()
                raise
        return body

    def _sure(self, sampling: dict) -> float:
        return 0.0 if sampling["top_p"] < 1e-3 and not self.raw else -0.5

    async def completions(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        if self.faults:
            return self.faults.pop(0)
        ids = [token + 1 for token in body["prompt"]][: body["max_tokens"]]
        sure = self._sure(body)
        logprobs = {"tokens": ["x"] * len(ids), "token_logprobs": [sure] * len(ids), "top_logprobs": None}
        choice = {
            "index": 0, "text": "…", "token_ids": ids, "prompt_token_ids": body["prompt"],
            "logprobs": logprobs,
            "finish_reason": "length" if len(ids) == body["max_tokens"] else "stop", "stop_reason": None,
        }  # fmt: skip
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}
        return web.json_response({"id": "cmpl-1", "model": "served", "choices": [choice], "usage": usage})

    async def generate(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        if self.faults:
            return self.faults.pop(0)
        most = body["sampling_params"]["max_new_tokens"]
        ids = [token + 1 for token in body["input_ids"]][:most]
        finish = {"type": "length", "length": most} if len(ids) == most else {"type": "stop", "matched": 2}
        meta = {"finish_reason": finish, "cached_tokens": 2, "weight_version": "default"}
        meta["output_token_logprobs"] = [[self._sure(body["sampling_params"]), token, None] for token in ids]
        return web.json_response({"text": "…", "output_ids": ids, "meta_info": meta})

    async def done(self, request: web.Request) -> web.Response:
        await self._asked(request)
        return self.faults.pop(0) if self.faults else web.json_response({"success": True, "message": ""})


@contextlib.asynccontextmanager
async def serving(server: Server):
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/generate", server.generate)
    for path in ("/collective_rpc", "/reset_prefix_cache", "/update_weights_from_disk"):
        app.router.add_post(path, server.done)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def talk(cls, test, server=None, **options):
    async def main():
        made = server() if server else Server()
        async with serving(made) as url:
            engine = await cls.connect(EngineConfig(url=options.pop("url", url), **options))
            try:
                await test(engine, made)
            finally:
                await engine.close()
                await engine.close()

    asyncio.run(asyncio.wait_for(main(), 30))


@BOTH
def test_ids_go_in_and_come_out_with_their_log_probs(cls, monkeypatch):
    monkeypatch.setenv("SERVER_KEY", "secret")

    async def test(engine, server):
        told = []
        sampling = Sampling(max_tokens=9, temperature=0.7, top_p=0.9, stop=("END",), stop_ids=(2,), seed=4)
        completion = await engine.generate([10, 11, 12], sampling, on_tokens=told.append)
        assert completion.token_ids == (11, 12, 13) and completion.logprobs == (-0.5,) * 3
        assert (completion.finish, completion.version, completion.cached) == (Finish.STOP, 0, 2)
        assert [list(ids) for ids in told] == [[11, 12, 13]]
        body = server.asked[-1][1]
        asked = body.get("sampling_params", body)
        assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.7, 0.9, -1)
        assert (asked["stop"], asked["stop_token_ids"]) == (["END"], [2])
        assert 4 in (asked.get("seed"), asked.get("sampling_seed"))
        assert server.key == "Bearer secret"

    talk(cls, test, key_env="SERVER_KEY")


@BOTH
def test_a_completion_stays_within_the_context(cls):
    async def test(engine, server):
        assert engine.max_context == 100
        cut = await engine.generate([5] * 98, Sampling(max_tokens=50))
        assert (len(cut.token_ids), cut.finish) == (2, Finish.LENGTH)
        asked = len(server.asked)
        full = await engine.generate([5] * 100, Sampling())
        assert (full.token_ids, full.finish) == ((), Finish.LENGTH) and len(server.asked) == asked

    talk(cls, test)


@BOTH
def test_faults_of_the_server_are_faults_of_the_engine(cls):
    async def test(engine, server):
        for status, kind in ((503, EngineBusy), (429, EngineBusy), (500, EngineError), (400, EngineError)):
            server.faults = [web.Response(status=status, text="no")]
            with pytest.raises(kind, match="no"):
                await engine.generate([1], Sampling())
        for nonsense in (web.json_response({}), web.json_response([1]), web.Response(text="not JSON")):
            server.faults = [nonsense]
            with pytest.raises(EngineError, match="token ids"):
                await engine.generate([1], Sampling())
        assert (await engine.generate([1], Sampling())).token_ids == (2,)

    talk(cls, test)


@BOTH
def test_weights_are_replaced_in_place(cls, tmp_path):
    async def test(engine, server):
        await engine.load(Weights(version=3, path=str(tmp_path)))
        assert str(tmp_path) in str(server.asked)
        assert (await engine.generate([1], Sampling())).version == engine.version == 3
        server.faults = [web.Response(status=500, text="no such folder")]
        with pytest.raises(EngineError, match="no such folder"):
            await engine.load(Weights(version=4, path=str(tmp_path)))
        assert engine.version == 3

    talk(cls, test)


@BOTH
def test_who_cancels_hangs_up(cls):
    async def test(engine, server):
        server.hang.set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.generate([1], Sampling()), 0.2)
        await asyncio.wait_for(server.hung_up.wait(), 5)

    talk(cls, test)


@BOTH
@pytest.mark.parametrize(
    ("server", "options", "word"),
    [
        (None, {"url": ""}, "engine.url"),
        (None, {"url": "http://127.0.0.1:9"}, "cannot be reached"),
        (lambda: Server(limit=None), {}, "max_context"),
    ],
)
def test_a_server_that_cannot_be_used_is_a_mistake_of_the_configuration(cls, server, options, word):
    async def never(engine, server):
        raise AssertionError

    with pytest.raises(ConfigError, match=word):
        talk(cls, never, server, **options)


def test_raw_log_probs_of_vllm_are_noticed():
    async def never(engine, server):
        raise AssertionError

    with pytest.raises(ConfigError, match="processed_logprobs"):
        talk(VllmEngine, never, lambda: Server(raw=True))


@pytest.mark.parametrize(("raw", "refused"), [(True, True), (False, False)])
def test_rl_refuses_top_p_where_log_probs_do_not_know_it(raw, refused):
    """SGLang tells them from before top-p, unless a version of it should say otherwise."""

    async def test(engine, server):
        assert engine.processed is not raw
        refuse_truncation(engine, SamplingConfig(temperature=0.7))
        with pytest.raises(ConfigError, match="SGLang tells log-probs") if refused else nullcontext():
            refuse_truncation(engine, SamplingConfig(top_p=0.9))

    talk(SglangEngine, test, lambda: Server(raw=raw))
