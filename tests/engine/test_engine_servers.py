"""vLLM and SGLang as engines, against small servers that speak their wire formats."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import nullcontext
from pathlib import Path

import pytest
from aiohttp import web

from patchwright.engine.config import EngineConfig
from patchwright.engine.sglang import SglangEngine
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.recipes.assembly import SamplingConfig
from patchwright.recipes.engines import open_engine
from patchwright.recipes.parity import refuse_truncation
from patchwright.types import Finish, Sampling, Weights

BOTH = pytest.mark.parametrize("cls", [VllmEngine, SglangEngine])


class Server:
    """Answers every prompt with its ids, one higher each, in the shapes of vLLM 0.33 and SGLang 0.5.23; keeps
    what it was asked. `raw`: its log-probs are not those of what is left by top-p."""

    def __init__(
        self, limit: int | None = 100, raw: bool = False, longest: int | None = None, holds: bool = False
    ) -> None:
        self.limit, self.raw, self.longest, self.holds = limit, raw, longest, holds
        self.held = False
        self.asked: list[tuple[str, dict]] = []
        self.faults: list[web.Response] = []
        self.hang = asyncio.Event()
        self.hung_up = asyncio.Event()

    async def models(self, request: web.Request) -> web.Response:
        model = {
            "id": "served", "object": "model", "created": 1, "owned_by": "vllm", "root": "served",
            "parent": None, "max_model_len": self.limit,
        }  # fmt: skip
        return web.json_response({"object": "list", "data": [model]})

    async def info(self, request: web.Request) -> web.Response:
        if self.longest is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        return web.json_response({"model_path": "served", "max_req_input_len": self.longest})

    async def _asked(self, request: web.Request) -> dict:
        body = await request.json() if request.can_read_body else {}
        self.asked.append((request.path_qs, body))
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

    def _refusal(self, sampling: dict) -> str:
        """What both refuse of a request."""
        if not 0 < sampling["top_p"] <= 1:
            return f"top_p must be in (0, 1], got {sampling['top_p']}."
        return "" if sampling["top_k"] == -1 or sampling["top_k"] >= 1 else "top_k must be -1 or at least 1"

    async def completions(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        if self.faults:
            return self.faults.pop(0)
        wrong = self._refusal(body)
        if len(body["prompt"]) + body["max_tokens"] > self.limit:
            wrong = f"This model's maximum context length is {self.limit} tokens."
        if wrong:
            error = {"message": wrong, "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        ids = [token + 1 for token in body["prompt"]][: body["max_tokens"]]
        sure = self._sure(body)
        logprobs = {
            "text_offset": list(range(len(ids))), "token_logprobs": [sure] * len(ids),
            "tokens": ["x"] * len(ids), "top_logprobs": [{"x": sure}] * len(ids),
        }  # fmt: skip
        choice = {
            "index": 0, "text": "…", "logprobs": logprobs if body["logprobs"] is not None else None,
            "finish_reason": "length" if len(ids) == body["max_tokens"] else "stop", "stop_reason": None,
            "token_ids": ids if body["return_token_ids"] else None, "prompt_logprobs": None,
            "prompt_token_ids": body["prompt"], "routed_experts": None, "weight_versions": None,
        }  # fmt: skip
        usage = {
            "prompt_tokens": len(body["prompt"]), "total_tokens": len(body["prompt"]) + len(ids),
            "completion_tokens": len(ids), "prompt_tokens_details": {"cached_tokens": 2},
        }  # fmt: skip
        answer = {
            "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "served",
            "choices": [choice], "service_tier": None, "system_fingerprint": None, "usage": usage,
            "kv_transfer_params": None, "ec_transfer_params": None, "metrics": None,
        }  # fmt: skip
        return web.json_response(answer)

    async def generate(self, request: web.Request) -> web.Response:
        body = await self._asked(request)
        if self.faults:
            return self.faults.pop(0)
        params = body["sampling_params"]
        most, prompt, wrong = params["max_new_tokens"], body["input_ids"], self._refusal(params)
        if len(prompt) >= (self.longest or self.limit):
            wrong = f"Input length ({len(prompt)} tokens) exceeds the maximum allowed length"
        if wrong:
            return web.json_response({"error": {"message": wrong}}, status=400)
        ids = [token + 1 for token in prompt][:most]
        finish = {"type": "length", "length": most} if len(ids) == most else {"type": "stop", "matched": 2}
        logprobs = [[self._sure(params), token, None] for token in ids] if body["return_logprob"] else None
        meta = {
            "id": "5f", "finish_reason": finish, "prompt_tokens": len(prompt), "weight_version": "default",
            "num_retractions": 0, "input_token_logprobs": [], "output_token_logprobs": logprobs,
            "output_token_logprobs_length": len(ids), "reasoning_tokens": 0, "completion_tokens": len(ids),
            "cached_tokens": 2, "dp_rank": None, "e2e_latency": 0.1,
        }  # fmt: skip
        return web.json_response({"text": "…", "output_ids": ids, "meta_info": meta})

    async def rpc(self, request: web.Request) -> web.Response:
        await self._asked(request)
        return self.faults.pop(0) if self.faults else web.json_response({"results": [None]})

    async def reset(self, request: web.Request) -> web.Response:
        await self._asked(request)
        return web.json_response({"success": "reset_running_requests" in request.query})

    async def hold(self, request: web.Request) -> web.Response:
        if not self.holds:
            return web.json_response({"detail": "Not Found"}, status=404)
        body = await self._asked(request)
        self.held = request.path in ("/pause", "/pause_generation")
        fits = not self.held or "keep" in request.query_string or body.get("mode") == "retract"
        return web.json_response({"status": "ok"}, status=200 if fits else 400)

    async def calls(self, request: web.Request) -> web.Response:
        modes = ["abort", "wait", "keep"] if self.holds else []
        mode = {"name": "mode", "in": "query", "schema": {"enum": modes, "type": "string"}}
        return web.json_response({"paths": {"/pause": {"post": {"parameters": [mode]}}}})

    async def update(self, request: web.Request) -> web.Response:
        await self._asked(request)
        done = {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0}
        return self.faults.pop(0) if self.faults else web.json_response(done)


@contextlib.asynccontextmanager
async def serving(server: Server):
    app = web.Application()
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/generate", server.generate)
    app.router.add_get("/server_info", server.info)
    app.router.add_get("/openapi.json", server.calls)
    app.router.add_post("/collective_rpc", server.rpc)
    app.router.add_post("/reset_prefix_cache", server.reset)
    app.router.add_post("/update_weights_from_disk", server.update)
    for path in ("/pause", "/resume", "/pause_generation", "/continue_generation"):
        app.router.add_post(path, server.hold)
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

    asyncio.run(asyncio.wait_for(main(), 60))


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
        penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_p")
        assert [asked[name] for name in penalties] == [1.0, 0.0, 0.0, 0.0]
        assert asked["skip_special_tokens"] is False
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
def test_options_are_of_the_range_the_servers_take(cls):
    async def test(engine, server):
        for options in ({"top_p": 0.0}, {"top_p": 1.0}, {"top_k": 0}, {"top_k": 1}, {"temperature": 0.0}):
            assert (await engine.generate([5], Sampling(**options))).token_ids == (6,)

    talk(cls, test)


def test_the_longest_prompt_of_sglang_is_under_its_context():
    """It refuses a longer one as a mistake of the request; here it is a full context."""

    async def test(engine, server):
        assert engine.max_context == 94
        assert (await engine.generate([5] * 93, Sampling())).finish is Finish.LENGTH
        full = await engine.generate([5] * 94, Sampling())
        assert (full.token_ids, full.finish) == ((), Finish.LENGTH)

    talk(SglangEngine, test, lambda: Server(longest=94))


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
        nan = {
            "choices": [{"token_ids": [2], "logprobs": {"token_logprobs": [None]}, "finish_reason": "stop"}]
        }
        nan["meta_info"] = {"output_token_logprobs": [[None, 2, None]], "finish_reason": {"type": "stop"}}
        server.faults = [web.json_response(nan)]
        with pytest.raises(EngineError, match="log-probs"):
            await engine.generate([1], Sampling())
        aborted = {
            "choices": [{"token_ids": [], "logprobs": {"token_logprobs": []}, "finish_reason": "abort"}]
        }
        finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        aborted["meta_info"] = {"output_token_logprobs": [], "finish_reason": finish}
        server.faults = [web.json_response(aborted)]
        assert (await engine.generate([1], Sampling())).finish is Finish.ABORT
        assert (await engine.generate([1], Sampling())).token_ids == (2,)

    talk(cls, test)


@BOTH
def test_weights_are_replaced_in_place(cls, tmp_path):
    async def test(engine, server):
        await engine.load(Weights(version=3, path=str(tmp_path)))
        assert str(tmp_path) in str(server.asked)
        assert (await engine.generate([1], Sampling())).version == engine.version == 3
        refused = {"success": False, "message": "no such folder", "num_paused_requests": 0}
        server.faults = [web.json_response(refused, status=500 if cls is VllmEngine else 400)]
        with pytest.raises(EngineError, match="no such folder"):
            await engine.load(Weights(version=4, path=str(tmp_path)))
        assert engine.version == 3

    talk(cls, test)


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
        monkeypatch.setattr("patchwright.engine.http._HOLD", 0.2)
        with pytest.raises(EngineError, match="later" if busy else "whether it can be held"):
            await engine.load(Weights(version=3, path=str(tmp_path)))
        assert "/collective_rpc" not in [path for path, _ in server.asked] and engine.version == 0

    talk(VllmEngine, test, lambda: Silent(holds=True))


def test_of_several_servers_one_that_is_down_is_tried_again():
    said: list[str] = []

    async def main():
        async with serving(Server()) as url:
            config = EngineConfig(use="vllm", url=[url, "http://127.0.0.1:9"])
            async with open_engine(Path("m"), config, say=said.append) as engine:
                assert (await engine.generate([1], Sampling())).token_ids == (2,)

    asyncio.run(asyncio.wait_for(main(), 60))
    assert "replica 1 has not started, and is tried again" in said[0] and "127.0.0.1:9" in said[0]


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
        (None, {"key_env": "NO_SUCH_KEY"}, "key_env.*NO_SUCH_KEY.*not set"),
        (None, {"header_env": {"Modal-Key": "NO_SUCH_KEY"}}, "header_env.*NO_SUCH_KEY.*not set"),
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
