"""The local engine and the trainer on the same weights and tokens: how far their log-probs may be apart."""

import asyncio

import pytest

from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.local import LocalEngine
from patchwright.train.batch import plan
from patchwright.train.config import TrainConfig
from patchwright.train.model import collate, logprobs
from patchwright.train.samples import samples
from patchwright.train.trainer import Trainer
from patchwright.types import Sampling, Trajectory, Turn

TEMPERATURE = 0.8


async def talk(engine, opening, attempts=3, turns=3):
    """A group of attempts at one prompt, with several turns each, the last of which leaves out the middle."""

    async def attempt(index):
        made = []
        context = opening
        for turn in range(turns):
            cut = turn == turns - 1
            asked = tuple(range(20 + 7 * turn, 26 + 7 * turn + index % 2))
            parent = None if cut or turn == 0 else turn - 1
            prompt = opening + context[-9:] + asked if cut else (opening + asked if turn == 0 else asked)
            context = prompt if parent is None else context + prompt
            sampling = Sampling(max_tokens=12, temperature=TEMPERATURE, seed=100 * index + turn)
            done = await engine.generate(context, sampling)
            made.append(
                Turn(
                    id=turn,
                    parent=parent,
                    prompt_ids=prompt,
                    completion_ids=done.token_ids,
                    logprobs=done.logprobs,
                )
            )
            context += done.token_ids
        return Trajectory(id=f"a{index}", task_id="k", turns=tuple(made))

    return await asyncio.gather(*(attempt(index) for index in range(attempts)))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 2e-5), ("bfloat16", 0.1)])
def test_what_the_engine_sampled_has_the_same_log_prob_in_the_trainer(model_folder, dtype, bound):
    """With the engine's prefix cache and batching on one side, and shared prefixes on the other."""

    async def roll():
        engine = LocalEngine(model_folder, config=LocalEngineConfig(device="cpu", dtype=dtype))
        try:
            return await talk(engine, tuple(range(3, 60)))
        finally:
            await engine.close()

    rows = [row for attempt in asyncio.run(roll()) for row in samples(attempt, advantage=1.0)]
    trainer = Trainer(model_folder, TrainConfig(temperature=TEMPERATURE, dtype=dtype))
    gaps, forests = [], 0
    for micro in plan(rows, 10_000, share=True):
        batch = collate(micro.rows, "cpu", micro.forest)
        values, _ = logprobs(trainer.model, batch, temperature=TEMPERATURE)
        gaps += (values - batch.old_logprobs_N).abs().tolist()
        forests += micro.forest is not None
    assert forests == 1 and len(gaps) == sum(weight > 0 for row in rows for weight in row.weights)
    assert max(gaps) < bound
