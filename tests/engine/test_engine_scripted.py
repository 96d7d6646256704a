import asyncio

import pytest

from patchwright.engine.check import check_engine
from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import EngineError
from patchwright.types import Finish, Sampling, Weights


def encode(text: str) -> list[int]:
    return [ord(char) for char in text]


def decode(ids: object) -> str:
    return "".join(map(chr, ids))  # type: ignore[call-overload]


def test_replies_come_in_order_and_run_out() -> None:
    async def run() -> None:
        engine = ScriptedEngine(["ab", "c"], encode, decode, stop_id=2)
        first = await engine.generate([9], Sampling())
        second = await engine.generate([9], Sampling())
        assert (first.token_ids, first.logprobs) == ((97, 98, 2), (0.0, 0.0, 0.0))
        assert (second.token_ids, second.finish) == ((99, 2), Finish.STOP)
        with pytest.raises(EngineError, match="used up"):
            await engine.generate([9], Sampling())

    asyncio.run(run())


def test_a_function_answers_the_decoded_prompt_within_max_tokens() -> None:
    async def run() -> None:
        engine = ScriptedEngine(lambda prompt: prompt.upper(), encode, decode, stop_id=2)
        done = await engine.generate(encode("abc"), Sampling(max_tokens=2))
        assert (decode(done.token_ids), done.finish) == ("AB", Finish.LENGTH)

    asyncio.run(run())


def test_it_conforms() -> None:
    engine = ScriptedEngine(lambda prompt: "x" + prompt[:20], encode, decode, stop_id=2, max_context=500)
    results = asyncio.run(check_engine(engine, encode, weights=Weights(version=4, path="")))
    assert [result for result in results if not result.ok] == []
    assert [result.name for result in results if result.skipped] == ["refuses when its queue is full"]
