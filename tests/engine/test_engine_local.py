import asyncio
import shutil
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from patchwright.engine.check import check_engine
from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.local import LocalEngine
from patchwright.errors import ConfigError, EngineBusy, EngineError
from patchwright.types import Completion, Finish, Sampling, Weights

torch.set_num_threads(1)

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3 untied": ("qwen3", {"tie_word_embeddings": False}),
    "qwen3 yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 128,
            }
        },
    ),
    "qwen2": ("qwen2", {}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3 rotary": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "mistral without a window": ("mistral", {"sliding_window": None}),
}


def prompt(length: int, seed: int = 0) -> list[int]:
    return [(i * 7 + seed * 31 + i * i * seed) % 300 + 3 for i in range(length)]


def with_engine(path: Path, use: Callable[[LocalEngine], Awaitable[Any]], **options: Any) -> Any:
    async def run() -> Any:
        engine = LocalEngine(path, config=LocalEngineConfig(device="cpu", **options))
        try:
            return await use(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def plain_logprobs(
    path: Path, ids: Sequence[int], completion: Completion, temperature: float = 1.0
) -> torch.Tensor:
    """What transformers gives for the sampled ids, token by token."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    whole = torch.tensor([[*ids, *completion.token_ids]])
    with torch.no_grad():
        logprobs = (model(whole).logits / temperature).log_softmax(-1)
    return logprobs[0, len(ids) - 1 : -1].gather(1, whole[0, len(ids) :, None])[:, 0]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logprobs_equal_those_of_a_plain_forward(name: str, make_model: Callable[..., Path]) -> None:
    kind, changes = ARCHITECTURES[name]
    path = make_model(kind, **changes)
    prompts = [prompt(length, seed) for seed, length in enumerate((1, 5, 60, 64, 65, 131))]

    async def use(engine: LocalEngine) -> list[Completion]:
        return await asyncio.gather(
            *(engine.generate(ids, Sampling(max_tokens=40, seed=i)) for i, ids in enumerate(prompts))
        )

    # A chunk of 50 cuts every long prompt in pieces and lets short sequences decode beside them.
    for ids, done in zip(prompts, with_engine(path, use, prefill_chunk=50), strict=True):
        assert len(done.token_ids) == 40
        expected = plain_logprobs(path, ids, done)
        torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-5, rtol=0)


def test_logprobs_are_those_after_temperature(make_model: Callable[..., Path]) -> None:
    path, ids = make_model(), prompt(20)
    done = with_engine(path, lambda e: e.generate(ids, Sampling(max_tokens=30, temperature=0.5, seed=1)))
    expected = plain_logprobs(path, ids, done, temperature=0.5)
    torch.testing.assert_close(torch.tensor(done.logprobs), expected, atol=1e-5, rtol=0)


def test_many_at_once_equal_one_at_a_time(make_model: Callable[..., Path]) -> None:
    requests = [
        (prompt(10 + 13 * i, i), Sampling(max_tokens=20 + 5 * i, seed=i, temperature=(0.0, 1.0, 0.7)[i % 3]))
        for i in range(12)
    ]

    async def alone(engine: LocalEngine) -> list[Completion]:
        return [await engine.generate(ids, sampling) for ids, sampling in requests]

    async def together(engine: LocalEngine) -> list[Completion]:
        return await asyncio.gather(*(engine.generate(ids, sampling) for ids, sampling in requests))

    one = with_engine(make_model(), alone)
    # Five rows for twelve requests: they also wait, leave and join in mid-flight.
    many = with_engine(make_model(), together, max_running=5)
    assert [done.token_ids for done in many] == [done.token_ids for done in one]


def test_the_next_turn_reuses_and_samples_the_same(make_model: Callable[..., Path]) -> None:
    sampling = Sampling(max_tokens=30, seed=4)

    async def turns(engine: LocalEngine) -> list[Completion]:
        first = await engine.generate(prompt(100), sampling)
        longer = [*prompt(100), *first.token_ids, *prompt(20, 5)]
        second = await engine.generate(longer, sampling)
        # Another continuation of the same beginning shares less.
        return [first, second, await engine.generate([*prompt(100), 7, 7, 7], sampling)]

    kept = with_engine(make_model(), turns)
    plain = with_engine(make_model(), turns, cache_mb=0)
    assert [done.cached for done in kept] == [0, 129, 100]
    assert [done.cached for done in plain] == [0, 0, 0]
    assert [done.token_ids for done in kept] == [done.token_ids for done in plain]


def test_requests_with_one_prompt_compute_it_once(make_model: Callable[..., Path]) -> None:
    async def group(engine: LocalEngine) -> list[Completion]:
        return await asyncio.gather(
            *(engine.generate(prompt(80), Sampling(max_tokens=10, seed=i)) for i in range(6))
        )

    done = with_engine(make_model(), group)
    assert sorted(one.cached for one in done) == [0, 79, 79, 79, 79, 79]
    assert len({one.token_ids for one in done}) == 6


def test_new_weights_change_the_answer_and_nothing_old_is_reused(make_model: Callable[..., Path]) -> None:
    old, new = make_model(seed=0), make_model(seed=1)
    sampling = Sampling(max_tokens=20, seed=2)

    async def use(engine: LocalEngine) -> tuple[Completion, Completion]:
        before = await engine.generate(prompt(64), sampling)
        await engine.load(Weights(version=7, path=str(new)))
        assert engine.version == 7
        return before, await engine.generate(prompt(64), sampling)

    before, after = with_engine(old, use)
    assert (before.version, after.version, after.cached) == (0, 7, 0)
    torch.testing.assert_close(
        torch.tensor(after.logprobs), plain_logprobs(new, prompt(64), after), atol=1e-5, rtol=0
    )


def test_a_load_in_flight_is_recorded_token_by_token(make_model: Callable[..., Path]) -> None:
    new = make_model(seed=1)

    async def use(engine: LocalEngine) -> tuple[Completion, Completion]:
        begun = asyncio.Event()
        sampling = Sampling(max_tokens=400, seed=1)
        running = asyncio.create_task(
            engine.generate(prompt(20), sampling, on_tokens=lambda ids: begun.set())
        )
        await begun.wait()
        await engine.load(Weights(version=1, path=str(new)))
        done = await running
        again = await engine.generate([*prompt(20), *done.token_ids[:50]], Sampling(max_tokens=1))
        return done, again

    done, again = with_engine(make_model(), use)
    assert len(done.versions) == 400 == len(done.token_ids)
    assert done.versions == tuple(sorted(done.versions)) and set(done.versions) == {0, 1}
    assert done.version == 1
    assert again.cached == 0, "keys and values of two versions are never reused"


def test_weights_that_do_not_fit_leave_the_old_ones(make_model: Callable[..., Path], tmp_path: Path) -> None:
    ids, sampling = prompt(30), Sampling(max_tokens=10, temperature=0.0)
    good = load_file(make_model() / "model.safetensors")
    faults = {
        "shape": {**good, "model.norm.weight": torch.ones(3)},
        "lacks 1 weights": {name: t for name, t in good.items() if name != "model.norm.weight"},
    }
    for name, tensors in faults.items():
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / "model.safetensors")
    (tmp_path / "cannot be read").mkdir()
    (tmp_path / "cannot be read" / "model.safetensors").write_bytes(b"half a file")
    (tmp_path / "holds no").mkdir()

    async def use(engine: LocalEngine) -> None:
        before = await engine.generate(ids, sampling)
        for folder in tmp_path.iterdir():
            with pytest.raises(EngineError, match=folder.name):
                await engine.load(Weights(version=9, path=str(folder)))
        after = await engine.generate(ids, sampling)
        assert (after.token_ids, after.version) == (before.token_ids, 0)
        assert after.logprobs == pytest.approx(before.logprobs, abs=1e-5)

    with_engine(make_model(), use)


def test_weights_that_yield_no_numbers_fail_and_mend(make_model: Callable[..., Path], tmp_path: Path) -> None:
    broken = {name: t * float("nan") for name, t in load_file(make_model() / "model.safetensors").items()}
    save_file(broken, tmp_path / "model.safetensors")
    sampling = Sampling(max_tokens=30, temperature=0.0)

    async def use(engine: LocalEngine) -> tuple[Completion, Completion]:
        before = await engine.generate(prompt(40), sampling)
        await engine.load(Weights(version=1, path=str(tmp_path)))
        with pytest.raises(EngineError, match="version 1 yield"):
            await engine.generate(prompt(50), sampling)
        await engine.load(Weights(version=2, path=str(make_model())))
        return before, await engine.generate(prompt(40), sampling)

    before, after = with_engine(make_model(), use)
    assert after.token_ids == before.token_ids


def test_stop_strings_end_the_completion_with_the_token_that_completes_them(
    make_model: Callable[..., Path],
) -> None:
    from tokenizers import Tokenizer

    path = make_model()
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))

    async def use(engine: LocalEngine) -> tuple[Completion, Completion]:
        free = await engine.generate(prompt(9), Sampling(max_tokens=40, seed=8))
        text = tokenizer.decode(list(free.token_ids[:20]), skip_special_tokens=False)
        stop = text.replace("\ufffd", " ").split()[-1]
        return free, await engine.generate(prompt(9), Sampling(max_tokens=40, seed=8, stop=("absent", stop)))

    free, done = with_engine(path, use)
    assert done.finish is Finish.STOP and len(done.token_ids) <= 20
    assert done.token_ids == free.token_ids[: len(done.token_ids)]


def test_context_bounds_prompt_and_completion_together(make_model: Callable[..., Path]) -> None:
    async def use(engine: LocalEngine) -> list[Completion]:
        assert engine.max_context == 50
        return [await engine.generate(prompt(n), Sampling(max_tokens=30, seed=0)) for n in (45, 50, 60)]

    lengths = [(len(done.token_ids), done.finish) for done in with_engine(make_model(), use, max_context=50)]
    assert lengths == [(5, Finish.LENGTH), (0, Finish.LENGTH), (0, Finish.LENGTH)]


def test_a_full_queue_refuses_and_recovers(make_model: Callable[..., Path]) -> None:
    async def use(engine: LocalEngine) -> None:
        async with asyncio.TaskGroup() as group:
            for i in range(5):
                group.create_task(engine.generate(prompt(10, i), Sampling(max_tokens=100)))
            await asyncio.sleep(0)
            with pytest.raises(EngineBusy, match="5 requests"):
                await engine.generate(prompt(10), Sampling(max_tokens=1))
        assert (await engine.generate(prompt(10), Sampling(max_tokens=1))).token_ids

    with_engine(make_model(), use, max_running=2, max_queue=3)


def test_cancelled_requests_free_their_rows(make_model: Callable[..., Path]) -> None:
    async def use(engine: LocalEngine) -> None:
        tasks = [
            asyncio.create_task(engine.generate(prompt(10, i), Sampling(max_tokens=8000))) for i in range(6)
        ]
        await asyncio.sleep(0.02)
        for task in tasks:
            task.cancel()
        assert all(
            isinstance(e, asyncio.CancelledError)
            for e in await asyncio.gather(*tasks, return_exceptions=True)
        )
        # Two rows only: this would wait for 16,000 tokens if they were still taken.
        seen = await engine.generate(prompt(30), Sampling(max_tokens=20, temperature=0.0))
        assert len(seen.token_ids) == 20

    with_engine(make_model(max_position_embeddings=8192), use, max_running=2)


def test_bad_prompts_and_callbacks_hurt_nobody_else(make_model: Callable[..., Path]) -> None:
    def explode(ids: Sequence[int]) -> None:
        raise ZeroDivisionError

    async def use(engine: LocalEngine) -> None:
        calm = asyncio.create_task(engine.generate(prompt(10), Sampling(max_tokens=50)))
        for ids in ([], [-1], [320], [2**70]):
            with pytest.raises(EngineError, match=r"0\.\.319"):
                await engine.generate(ids, Sampling())
        with pytest.raises(ZeroDivisionError):
            await engine.generate(prompt(10), Sampling(), on_tokens=explode)
        assert len((await calm).token_ids) == 50

    with_engine(make_model(), use)


def test_closing_fails_what_is_in_flight(make_model: Callable[..., Path]) -> None:
    async def use(engine: LocalEngine) -> None:
        running = asyncio.create_task(engine.generate(prompt(10), Sampling(max_tokens=8000)))
        await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(EngineError, match="closed"):
            await running

    with_engine(make_model(max_position_embeddings=8192), use)


def test_bfloat16_answers_near_float32(make_model: Callable[..., Path]) -> None:
    path, ids = make_model(gain=2.0), prompt(30)
    done = with_engine(path, lambda e: e.generate(ids, Sampling(max_tokens=20, seed=1)), dtype="bfloat16")
    torch.testing.assert_close(torch.tensor(done.logprobs), plain_logprobs(path, ids, done), atol=0.1, rtol=0)


def test_it_conforms(make_model: Callable[..., Path]) -> None:
    from tokenizers import Tokenizer

    path = make_model()
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    engine = LocalEngine(path, config=LocalEngineConfig(device="cpu", max_running=2, max_queue=2))
    results = asyncio.run(
        check_engine(
            engine,
            lambda text: tokenizer.encode(text).ids,
            weights=Weights(version=3, path=str(path)),
            busy_after=4,
        )
    )
    assert [result for result in results if not result.ok or result.skipped] == []


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a sliding window": (
        "qwen3",
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0},
        "window",
    ),
    "mistral's window": ("mistral", {"sliding_window": 16}, "window"),
    "absolute positions": ("gpt2", {}, "gpt2"),
    "an encoder": ("t5", {}, "encoder-decoder"),
    "a hybrid": ("qwen3_next", {}, "qwen3_next"),
    "dynamic rotary": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
        "dynamic",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_architectures_it_would_compute_wrongly_are_refused(name: str, tmp_path: Path) -> None:
    kind, changes, why = REFUSED[name]
    CONFIG_MAPPING[kind](**changes).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=why):
        LocalEngine(tmp_path)


def test_incomplete_folders_and_wrong_options_are_refused(
    make_model: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"no config\.json"):
        LocalEngine(tmp_path / "absent")
    for missing, why in (("tokenizer.json", "tokenizer"), ("model.safetensors", "safetensors")):
        folder = shutil.copytree(make_model(), tmp_path / missing)
        (folder / missing).unlink()
        with pytest.raises(ConfigError, match=why):
            LocalEngine(folder)
    for options, why in (({"max_context": 4096}, "512 positions"), ({"device": "abacus"}, "abacus")):
        with pytest.raises(ConfigError, match=why):
            LocalEngine(make_model(), config=LocalEngineConfig.model_validate(options))
