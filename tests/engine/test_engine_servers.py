"""vLLM and SGLang as engines, against small servers that speak their wire formats."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path

import pytest
from aiohttp import web
from tests.engine.model_servers import BOTH, Server, serving, talk

from patchwright.engine.config import EngineConfig
from patchwright.engine.sglang import SglangEngine
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.recipes.assembly import SamplingConfig
from patchwright.recipes.engines import open_engine
from patchwright.recipes.parity import refuse_truncation
from patchwright.types import Finish, Sampling, Weights


@BOTH
def test_ids_go_in_and_come_out_with_their_log_probs(cls, monkeypatch):
    monkeypatch.setenv("SERVER_KEY", "secret")

    async def test(engine, server):
        told = []
        sampling = Sampling(max_tokens=9, temperature=0.7, top_p=0.9, stop=("END",), stop_ids=(2,), seed=4)
        completion = await engine.generate([10, 11, 12], sampling, on_tokens=told.append)
        assert completion.token_ids == (11, 12, 13) and completion.logprobs == (-0.5,) * 3
        assert (completion.finish, completion.version, completion.cached) == (Finish.STOP, 0, 2)
        assert [token for ids in told for token in ids] == [11, 12, 13]
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
        count, asking = len(server.asked), asyncio.create_task(engine.generate([1], Sampling()))
        while len(server.asked) == count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await server.hung_up.wait()

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
