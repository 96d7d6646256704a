"""A model spread over two processes does what one process does, from a call to the folders it leaves."""

import asyncio
import math
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.train import rank_failures, rank_jobs
from transformers import Qwen3ForCausalLM

from patchwright.config import load_config
from patchwright.errors import ConfigError, EngineError, StoreError
from patchwright.train.algorithm import PolicyLoss
from patchwright.train.batch import dealt, plan
from patchwright.train.config import LoraConfig, TrainConfig
from patchwright.train.model import collate, new_model
from patchwright.train.process import ChildProcess, WorkerDiedError
from patchwright.train.ranks import Ranks
from patchwright.train.shards import Shards
from patchwright.train.tokenizer import train_tokenizer
from patchwright.train.trainer import Trainer
from patchwright.train.worker import TrainerProcess
from patchwright.types import Sample

FREE = PolicyLoss(max_drift=99)
LOSSES = [
    "sft",
    replace(FREE, kl="k3", kl_coef=0.1, entropy_coef=0.01),
    replace(FREE, surrogate="gspo"),
    FREE,
]


@pytest.fixture(scope="module")
def pair():
    with ranks_of(2) as both:
        yield both


@pytest.fixture(scope="module")
def four():
    with ranks_of(4) as all_four:
        yield all_four


@contextmanager
def ranks_of(count):
    """Calls a job on so many ranks at once and gives what all answered."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as meeting:
        pools = [ProcessPoolExecutor(1, mp_context=spawn) for _ in range(count)]

        def all_of_them(job, *args, **more):
            calls = [pool.submit(job, *args, **more) for pool in pools]
            return [call.result(timeout=300) for call in calls]

        calls = [pool.submit(rank_jobs.meet, rank, count, meeting) for rank, pool in enumerate(pools)]
        try:
            for call in calls:
                call.result(timeout=300)
            yield all_of_them
        finally:
            for pool in pools:
                for process in (pool._processes or {}).values():
                    process.kill()
                pool.shutdown()


@pytest.fixture
def rows(make_rows):
    """Nine rows, and five attempts that begin alike."""

    def behind(row):
        pad = (0,) * 30
        return replace(
            row,
            trajectory_id="s" + row.trajectory_id,
            token_ids=(*range(10, 40), *row.token_ids),
            mask=pad + row.mask,
            **{name: (0.0,) * 30 + getattr(row, name) for name in ("logprobs", "advantages", "weights")},
        )

    found = make_rows(9)
    return found + [behind(row) for row in found[:5]]


def same_tensors(first, second, bound=1e-6):
    one, two = load_file(first), load_file(second)
    assert one.keys() == two.keys()
    for name in one:
        assert one[name].dtype == two[name].dtype == torch.float32
        assert (one[name] - two[name]).norm() <= bound * one[name].norm(), name


def same_answers(alone, together, rel=1e-5):
    assert together[0] == together[1], "both ranks know the same"
    for one, two in zip(alone[0], together[0][0], strict=True):
        assert asdict(two) == pytest.approx(asdict(one), rel=rel, abs=1e-6)
    assert together[0][1] == pytest.approx(alone[1], rel=rel)


CONFIGS = {
    "plain": TrainConfig(lr=1e-3, minibatches=2, micro_batch_tokens=120, weight_decay=0.1),
    "recompute": TrainConfig(lr=1e-3, micro_batch_tokens=120, recompute=True, normalise="token"),
    "lora": TrainConfig(lr=1e-3, micro_batch_tokens=120, recompute=True, lora=LoraConfig(rank=4)),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_two_ranks_train_what_one_does(pair, model_folder, rows, tmp_path, name):
    jobs = [(rows, loss) for loss in (LOSSES if name == "plain" else LOSSES[:2])]
    alone = rank_jobs.train(model_folder, CONFIGS[name], jobs, weights=tmp_path / "one")
    together = pair(rank_jobs.train, model_folder, CONFIGS[name], jobs, weights=tmp_path / "two")
    same_answers(alone, together)
    assert alone[0][1].reference_kl > 0 and alone[0][1].updates == CONFIGS[name].minibatches
    files = {path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*.*")}
    assert files == {path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*.*")}
    for file in (file for file in files if file.suffix == ".safetensors"):
        # an adapter's B starts at 0: it is all move, and a move is as exact as its gradient; one process with
        # other micro-batches differs by 3e-5 too
        bound = 1e-4 if "adapter" in file.parts else 1e-6
        same_tensors(tmp_path / "one" / file, tmp_path / "two" / file, bound)


def test_bfloat16_arithmetic_is_the_same_on_two_ranks(pair, model_folder, rows):
    config = TrainConfig(lr=0.0, dtype="bfloat16", micro_batch_tokens=120)
    alone = rank_jobs.train(model_folder, config, [(rows, "sft")])
    same_answers(alone, pair(rank_jobs.train, model_folder, config, [(rows, "sft")]), rel=2e-2)


def test_layers_are_made_whole_in_the_precision_of_the_arithmetic(pair, model_folder, rows):
    for config, seen in (
        ({}, ("torch.float32", {False})),
        ({"dtype": "bfloat16", "offload": True}, ("torch.bfloat16", {True})),
    ):
        assert pair(rank_jobs.layer_weights, model_folder, rows[0], **config) == [seen, seen]


def test_more_ranks_than_rows_and_updates_that_are_left_out(pair, model_folder, rows, tmp_path):
    poisoned = replace(rows[0], advantages=(math.nan,) * len(rows[0]))
    jobs = [([rows[0]], FREE), ([poisoned, rows[1]], FREE), ([], FREE), ([rows[2]], "sft")]
    config = TrainConfig(lr=1e-3)
    alone = rank_jobs.train(model_folder, config, jobs, weights=tmp_path / "one")
    together = pair(rank_jobs.train, model_folder, config, jobs, weights=tmp_path / "two")
    assert [(m.updates, m.skipped) for m in together[0][0][:4]] == [(1, 0), (0, 1), (0, 0), (1, 0)]
    assert together[0][1] == pytest.approx(alone[1], rel=1e-5)
    same_tensors(tmp_path / "one" / "model.safetensors", tmp_path / "two" / "model.safetensors")


@pytest.mark.parametrize("tied", [True, False])
def test_logits_in_pieces_have_the_same_gradients(pair, tiny, tmp_path, make_rows, tied):
    """Of a head that is the embedding, or its own; added up on each rank, or after every micro-batch."""
    model = new_model(tiny, train_tokenizer([], vocab_size=260))
    model.config.tie_word_embeddings = tied
    torch.manual_seed(0)
    Qwen3ForCausalLM(model.config).save_pretrained(tmp_path / "v0")
    batches = [collate(make_rows(3, seed=seed)) for seed in range(4)]
    alone = rank_jobs.gradients(tmp_path / "v0", batches, max_logits=2**25, holds=True)
    assert ("lm_head.weight" in alone) is not tied
    for how in ({"holds": True}, {"holds": False}, {"holds": True, "offload": True}):
        together = pair(rank_jobs.gradients, tmp_path / "v0", batches, max_logits=7 * 260, **how)[0]
        for name, wanted in alone.items():
            torch.testing.assert_close(together[name], wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CONFIGS)
def test_four_ranks_train_what_one_does(four, model_folder, rows, tmp_path, name):
    jobs = [(rows, loss) for loss in LOSSES[:2]]
    alone = rank_jobs.train(model_folder, CONFIGS[name], jobs, weights=tmp_path / "one")
    together = four(rank_jobs.train, model_folder, CONFIGS[name], jobs, weights=tmp_path / "four")
    same_answers(alone, together)
    same_tensors(tmp_path / "one" / "model.safetensors", tmp_path / "four" / "model.safetensors")


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=2)], ids=["whole", "lora"])
def test_a_checkpoint_goes_on_with_any_number_of_ranks(pair, four, model_folder, make_rows, tmp_path, lora):
    """2 -> 1 -> 4 -> 2 ranks, of which some have no part of the smallest tensors."""
    config = TrainConfig(lr=3e-3, minibatches=2, weight_decay=0.1, lora=lora)
    jobs = [(make_rows(6, seed=seed), "policy" if seed % 2 else "sft") for seed in range(4)]
    whole = rank_jobs.train(model_folder, config, jobs, weights=tmp_path / "whole")
    train = partial(partial, rank_jobs.train, model_folder, config)
    pair(train(jobs[:1], checkpoint=tmp_path / "first"))
    train(jobs[1:2], resume=tmp_path / "first", checkpoint=tmp_path / "second")()
    four(train(jobs[2:3], resume=tmp_path / "second", checkpoint=tmp_path / "third"))
    together = pair(train(jobs[3:], resume=tmp_path / "third", weights=tmp_path / "resumed"))
    same_answers((whole[0][3:], whole[1]), together)
    same_tensors(tmp_path / "whole" / "model.safetensors", tmp_path / "resumed" / "model.safetensors")
    sizes = [path.stat().st_size for path in (tmp_path / "third").iterdir()]
    assert len(sizes) == 4 and max(sizes) < 2 * sum(sizes) / 4, "each wrote its part"


def test_as_many_ranks_resume_to_the_bit(pair, model_folder, make_rows, tmp_path):
    config = TrainConfig(lr=3e-3, minibatches=2, weight_decay=0.1)
    jobs = [(make_rows(6, seed=seed), "policy" if seed % 2 else "sft") for seed in range(3)]
    whole = pair(rank_jobs.train, model_folder, config, jobs)[0]
    pair(rank_jobs.train, model_folder, config, jobs[:2], checkpoint=tmp_path / "2")
    resumed = pair(rank_jobs.train, model_folder, config, jobs[2:], resume=tmp_path / "2")[0]
    assert resumed == (whole[0][2:], whole[1])


def test_a_checkpoint_that_lacks_a_part_is_refused(four, model_folder, rows, tmp_path):
    config = TrainConfig(lr=3e-3)
    four(rank_jobs.train, model_folder, config, [(rows, "sft")], checkpoint=tmp_path / "1")
    for name in ("shard-00002-model-00001-of-00001", "shard-00004-model-00001-of-00001"):
        lacking = shutil.copytree(tmp_path / "1", tmp_path / name)
        (lacking / f"{name}.safetensors").unlink()
        with pytest.raises(ConfigError, match=r"is damaged: a part of .* is missing|of another model"):
            Trainer(model_folder, config).load_checkpoint(lacking)
    (tmp_path / "1" / f"{name}.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ConfigError, match="is damaged"):
        Trainer(model_folder, config).load_checkpoint(tmp_path / "1")


def test_what_one_rank_refuses_all_refuse(pair, model_folder, rows, tmp_path):
    config = TrainConfig(lr=1e-3, micro_batch_tokens=120)
    for loss in (PolicyLoss(max_drift=0.01), PolicyLoss(max_drift=0.01, correction="tis")):
        alone = rank_jobs.refused(model_folder, config, rows, loss)
        assert "engine and trainer disagree" in alone[0]
        assert pair(rank_jobs.refused, model_folder, config, rows, loss) == [alone, alone]
    Trainer(model_folder, TrainConfig(lora=LoraConfig(rank=2))).save_checkpoint(tmp_path / "lora")
    other = config.model_copy(update={"lora": LoraConfig(rank=4)})
    for message, updates in pair(rank_jobs.refused, model_folder, other, rows, "sft", tmp_path / "lora"):
        assert "checkpoint of another model" in message and updates == 1


# --- processes --------------------------------------------------------------------------------


def test_a_trainer_of_two_processes_trains_and_ends_when_one_is_killed(model_folder, rows, tmp_path):
    config = TrainConfig(lr=1e-3, micro_batch_tokens=120, ranks=2)
    alone = Trainer(model_folder, config.model_copy(update={"ranks": 1}))

    async def run():
        async with TrainerProcess(model_folder, config) as trainer:
            told = await trainer.step(rows, loss=FREE)
            assert told.loss == pytest.approx(alone.step(rows, loss=FREE).loss, rel=1e-5)
            steps = await trainer.steps([rows[:4], rows[4:]], loss="sft", lr_scales=[1.0, 0.5])
            assert steps.updates == 1 and await trainer.evaluate(rows) > 0
            weights = await trainer.save_weights(tmp_path / "v1", 1)
            await trainer.save_checkpoint(tmp_path / "2")
            await trainer.load_checkpoint(tmp_path / "2")
            scores = await trainer.score(rows[0].token_ids)
            assert scores == pytest.approx(
                Trainer(weights.path, TrainConfig()).score(rows[0].token_ids), rel=1e-5
            )
            pids = [worker.pid for worker in trainer._workers]
            waiting = asyncio.create_task(trainer.steps([rows] * 1000, loss="sft", lr_scales=[1.0] * 1000))
            await asyncio.sleep(0.3)  # in the midst of it, or before: both must end
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(EngineError, match="one of the trainer's 2 processes died"):
                await asyncio.wait_for(waiting, 300)
            return pids

    for pid in asyncio.run(run()):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_given_meet_over_tcp_at_their_addresses(model_folder, rows):
    config = TrainConfig(lr=1e-3, micro_batch_tokens=120, ranks=2)
    alone = Trainer(model_folder, config.model_copy(update={"ranks": 1}))

    async def run():
        workers = [ChildProcess(), ChildProcess()]
        async with TrainerProcess(model_folder, config, workers) as trainer:
            told = await trainer.step(rows, loss=FREE)
            assert told.loss == pytest.approx(alone.step(rows, loss=FREE).loss, rel=1e-5)
            listeners = await workers[0].call(rank_failures.listening)
            assert listeners and {host for host, _ in listeners} == {"127.0.0.1"}, "and nowhere else"
        return [worker.pid for worker in workers]

    assert asyncio.run(run()) == [None, None], "closed with the trainer"


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "disk full"])
def test_a_rank_that_ends_while_it_writes_leaves_the_last_checkpoint(model_folder, rows, tmp_path, kill):
    folder, config = tmp_path / "step", TrainConfig(lr=1e-3, ranks=2)

    async def run():
        async with TrainerProcess(model_folder, config) as trainer:
            await trainer.step(rows, loss="sft")
            await trainer.save_checkpoint(folder)
            before = await trainer.evaluate(rows)
            await trainer.step(rows, loss="sft")
            await trainer._workers[1].call(partial(rank_failures.full_disk, kill=kill))
            told = pytest.raises(EngineError, match="died") if kill else pytest.raises(StoreError)
            with told:
                await trainer.save_checkpoint(folder)
            return before

    before = asyncio.run(run())
    resumed = Trainer(model_folder, config.model_copy(update={"ranks": 1}))
    resumed.load_checkpoint(folder)
    assert resumed.steps == 1 and resumed.evaluate(rows) == pytest.approx(before, rel=1e-5)


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (partial(rank_failures.fail, StoreError("the disk is full")), partial(time.sleep, 600), StoreError),
        (partial(rank_failures.fail, RuntimeError("connection closed")), rank_failures.die, EngineError),
        (partial(rank_failures.fail, RuntimeError("out of memory")), partial(time.sleep, 600), RuntimeError),
    ],
    ids=["refuses", "saw a death", "breaks"],
)
def test_a_rank_that_fails_ends_all_and_its_cause_is_told(model_folder, one, other, told):
    async def run():
        trainer = TrainerProcess(model_folder, TrainConfig(ranks=2))
        await asyncio.gather(*(worker.call(os.getpid) for worker in trainer._workers))  # both are up
        calls = [worker.call(job) for worker, job in zip(trainer._workers, (one, other), strict=True)]
        with pytest.raises(told):
            await asyncio.wait_for(trainer._gather(calls), 300)
        return [worker.pid for worker in trainer._workers]

    assert asyncio.run(run()) == [None, None], "both have ended"


def test_the_death_of_a_worker_elsewhere_is_waited_for_longer(model_folder, monkeypatch):
    monkeypatch.setattr("patchwright.train.worker._GRACE_S", 0.0)

    async def late(failed):
        await failed.wait()
        await asyncio.sleep(0.05)
        raise WorkerDiedError

    async def breaks(failed):
        failed.set()
        raise RuntimeError("connection closed")

    async def run():
        given = [ChildProcess(), ChildProcess()]
        trainer, failed = TrainerProcess(model_folder, TrainConfig(ranks=2), given), asyncio.Event()
        with pytest.raises(EngineError, match="died"):
            await trainer._gather([breaks(failed), late(failed)])

    asyncio.run(run())


def test_mistakes_about_ranks_are_one_sentence(model_folder, tmp_path):
    for config in (TrainConfig(ranks=2), TrainConfig(offload=True, device="cuda")):
        with pytest.raises(ConfigError, match="is one rank with all in one place"):
            Trainer(model_folder, config, Ranks("cpu"))
    with pytest.raises(ConfigError, match="is in host memory already"):
        load_config(TrainConfig, overrides=["offload=true"])
    with pytest.raises(ConfigError, match="takes as many workers, not 1"):
        TrainerProcess(model_folder, TrainConfig(ranks=2), [ChildProcess()])
    with pytest.raises(ConfigError, match=r"no network interface .* has the address 192\.0\.2\.1"):
        Shards(TrainConfig(ranks=2), rank=0, meeting="tcp://192.0.2.1:1", address="192.0.2.1")
    with pytest.raises(ConfigError, match="takes a GPU per rank"):
        Shards(TrainConfig(ranks=2, device="cuda:1"), rank=0, meeting=str(tmp_path))
    with pytest.raises(ConfigError, match="needs as many GPUs"):
        Shards(TrainConfig(ranks=99, device="cuda"), rank=98, meeting=str(tmp_path))


# --- who computes what ------------------------------------------------------------------------


def blank(number, length, shared):
    ids = tuple(range(shared)) + tuple(1000 * (number + 1) + at for at in range(length))
    zeros = (0.0,) * len(ids)
    ones = (*zeros[:-1], 1.0)
    return Sample(token_ids=ids, mask=(0,) * len(ids), logprobs=zeros, advantages=zeros, weights=ones)


@given(
    lengths=st.lists(st.tuples(st.integers(2, 300), st.sampled_from([0, 30])), max_size=25),
    budget=st.integers(10, 400),
    ranks=st.integers(2, 5),
    share=st.booleans(),
)
def test_ranks_share_out_every_row_once_and_take_as_many_turns(lengths, budget, ranks, share):
    rows = [blank(number, *length) for number, length in enumerate(lengths)]
    parts = [dealt(rows, budget, share=share, rank=rank, ranks=ranks) for rank in range(ranks)]
    assert len({len(part) for part in parts}) == 1
    trained = [row for part in parts for micro in part for row in micro.rows if any(row.weights)]
    assert sorted(map(id, trained)) == sorted(map(id, rows))
    for micro in (micro for part in parts for micro in part):
        assert micro.computed <= max(budget, *(len(row) for row in micro.rows))
    turns = [max(micro.computed for micro in turn) for turn in zip(*parts, strict=True)]
    assert sum(turns) <= sum(micro.computed for micro in plan(rows, budget, share=share))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("seed", range(3))
def test_no_rank_has_much_more_to_compute_than_the_others(ranks, seed):
    """A long-tail draw: most rows have some 150 tokens, the longest 3,000."""
    draw = random.Random(seed)
    rows = [blank(number, min(3000, int(8 + draw.lognormvariate(5, 1))), 0) for number in range(256)]
    parts = [dealt(rows, 4096, share=True, rank=rank, ranks=ranks) for rank in range(ranks)]
    loads = [sum(micro.computed for micro in part) for part in parts]
    mean = sum(loads) / ranks
    assert max(loads) <= 1.07 * mean
    turns = [max(micro.computed for micro in turn) for turn in zip(*parts, strict=True)]
    assert sum(turns) <= 1.07 * mean, "nor do they wait for another in each turn"
    assert sum(turns) * ranks <= 1.16 * sum(map(len, rows)), "and padding is not how they are made even"


def test_one_small_micro_batch_is_cut_for_two_ranks():
    rows = [blank(number, 20, 0) for number in range(10)]
    parts = [dealt(rows, 1000, share=True, rank=rank, ranks=2) for rank in range(2)]
    assert [[len(micro.rows) for micro in part] for part in parts] == [[5], [5]]
