import math
import resource
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from patchwright.errors import ConfigError, StoreError
from patchwright.train.batch import epoch
from patchwright.train.config import TrainConfig, schedule
from patchwright.train.trainer import Trainer


def parameters(trainer):
    return [weight.detach().clone() for weight in trainer.model.parameters()]


def distance(first, second):
    return max((a - b).abs().max().item() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("loss", ["sft", "policy"])
@pytest.mark.parametrize("normalise", ["sequence", "token"])
def test_accumulation_equals_the_big_batch(model_folder, make_rows, loss, normalise):
    """The gradient, not the parameters: AdamW blows rounding up where gradients are near zero."""
    gradients, metrics = [], []
    for budget in (50, 100_000):
        config = TrainConfig(micro_batch_tokens=budget, normalise=normalise, lr=0.0)
        trainer = Trainer(model_folder, config)
        kept = []
        for weight in trainer.model.parameters():
            weight.register_post_accumulate_grad_hook(
                lambda w, kept=kept: kept.append((id(w), w.grad.clone()))
            )
        metrics.append(trainer.step(make_rows(9), loss=loss))
        last = dict(kept)  # a parameter's hook fires once a micro-batch; the last call saw the sum
        gradients.append([last[id(weight)] for weight in trainer.model.parameters()])
    assert distance(*gradients) < 1e-6
    assert metrics[0].loss == pytest.approx(metrics[1].loss, abs=1e-5)
    assert metrics[0].grad_norm == pytest.approx(metrics[1].grad_norm, rel=1e-4)
    assert metrics[0].trained == sum(sum(row.mask) for row in make_rows(9))


def test_supervised_training_learns_a_tiny_dataset_by_heart(model_folder, make_rows):
    rows = make_rows(4, longest=16)
    trainer = Trainer(model_folder, TrainConfig(lr=1e-2, weight_decay=0.1, normalise="token"))
    first = trainer.step(rows, loss="sft")
    assert first.loss == pytest.approx(math.log(259), abs=0.3)
    for _ in range(60):
        last = trainer.step(rows, loss="sft")
    assert last.loss < 0.05
    assert last.entropy < first.entropy / 5
    assert (last.clip_fraction, last.kl) == (0, 0)


def test_policy_training_makes_good_tokens_likelier_and_bad_ones_rarer(model_folder, make_rows):
    trainer = Trainer(model_folder, TrainConfig(lr=2e-3, minibatches=2))
    rows = [
        with_policy_logprobs(trainer, row, sign) for row, sign in zip(make_rows(6), [1, -1] * 3, strict=True)
    ]
    before = [sampled(trainer, row) for row in rows]
    metrics = trainer.step(rows, loss="policy")
    after = [sampled(trainer, row) for row in rows]
    assert metrics.updates == 2 and metrics.kl > 0
    assert all((b - a) * row.advantages[-1] > 0 for a, b, row in zip(before, after, rows, strict=True))
    for _ in range(30):
        metrics = trainer.step(rows, loss="policy")
    assert metrics.clip_fraction > 0.3, "training on stale rows must run into the clip"


def with_policy_logprobs(trainer, row, sign):
    scores = (0.0, *trainer.score(row.token_ids))
    logprobs = tuple(s * m for s, m in zip(scores, row.mask, strict=True))
    return replace(row, logprobs=logprobs, advantages=tuple(float(sign * m) for m in row.mask))


def sampled(trainer, row):
    return sum(s * m for s, m in zip((0.0, *trainer.score(row.token_ids)), row.mask, strict=True))


def test_the_first_policy_step_sees_a_ratio_of_one_at_the_sampling_temperature(model_folder, make_rows):
    trainer = Trainer(model_folder, TrainConfig(temperature=0.7, lr=0.0))
    rows = [with_policy_logprobs(trainer, row, 1) for row in make_rows(5)]
    metrics = trainer.step(rows, loss="policy")
    assert metrics.kl == pytest.approx(0, abs=1e-7)
    assert metrics.loss == pytest.approx(-1, abs=1e-5)


@torch.no_grad()
def test_scores_are_those_of_transformers_at_the_sampling_temperature(model_folder, make_rows):
    (row,) = make_rows(1)
    logits = AutoModelForCausalLM.from_pretrained(model_folder)(
        input_ids=torch.tensor([row.token_ids])
    ).logits
    wanted = (logits[0, :-1] / 0.7).log_softmax(-1).gather(-1, torch.tensor(row.token_ids[1:])[:, None])[:, 0]
    scores = Trainer(model_folder, TrainConfig(temperature=0.7)).score(row.token_ids)
    torch.testing.assert_close(torch.tensor(scores), wanted, atol=1e-5, rtol=1e-5)


def test_the_schedule_scales_the_step(model_folder, make_rows):
    moves = []
    for scale in (0.0, 0.5, 1.0):
        trainer = Trainer(model_folder, TrainConfig(lr=1e-3))
        before = parameters(trainer)
        assert trainer.step(make_rows(3), loss="sft", lr_scale=scale).lr == scale * 1e-3
        moves.append(distance(before, parameters(trainer)))
    assert moves == pytest.approx([0, 5e-4, 1e-3], rel=0.01, abs=1e-9)


def test_rows_without_weight_make_no_update(model_folder, make_rows):
    trainer = Trainer(model_folder, TrainConfig(weight_decay=0.1))
    before = parameters(trainer)
    idle = [replace(row, weights=(0.0,) * len(row)) for row in make_rows(3)]
    assert trainer.step(idle, loss="sft").updates == 0
    assert trainer.step([], loss="policy").updates == 0
    assert distance(before, parameters(trainer)) == 0


def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(model_folder, make_rows):
    trainer = Trainer(model_folder, TrainConfig())
    rows = make_rows(3)
    before = parameters(trainer)
    poisoned = replace(rows[0], advantages=tuple(math.nan for _ in rows[0].advantages))
    metrics = trainer.step([poisoned, *rows[1:]], loss="policy")
    assert (metrics.updates, metrics.skipped) == (0, 1)
    assert distance(before, parameters(trainer)) == 0
    assert trainer.step(rows, loss="policy").updates == 1


def test_only_matrices_decay(model_folder, make_rows):
    """Advantages of 0 make the gradient 0: what moves is what decays."""
    trainer = Trainer(model_folder, TrainConfig(weight_decay=0.5, lr=0.1))
    before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
    flat = [replace(row, advantages=(0.0,) * len(row)) for row in make_rows(3)]
    trainer.step(flat, loss="policy")
    for name, weight in trainer.model.named_parameters():
        factor = 0.95 if name.endswith("proj.weight") else 1.0
        torch.testing.assert_close(weight.detach(), before[name] * factor)


def test_a_resumed_run_equals_the_uninterrupted_one_to_the_bit(model_folder, make_rows, tmp_path):
    config = TrainConfig(lr=3e-3, minibatches=2, weight_decay=0.1)
    batches = [make_rows(6, seed=index) for index in range(4)]
    whole = Trainer(model_folder, config)
    for rows in batches:
        expected = whole.step(rows, loss="policy")
    first = Trainer(model_folder, config)
    for rows in batches[:2]:
        first.step(rows, loss="policy")
    first.save_checkpoint(tmp_path / "2")
    second = Trainer(model_folder, config)
    second.load_checkpoint(tmp_path / "2")
    for rows in batches[2:]:
        resumed = second.step(rows, loss="policy")
    assert distance(parameters(whole), parameters(second)) == 0
    assert replace(resumed, seconds=0) == replace(expected, seconds=0)
    assert second.steps == 4


def test_saved_weights_load_into_transformers_unchanged(model_folder, make_rows, tmp_path):
    trainer = Trainer(model_folder, TrainConfig(lr=1e-2))
    trainer.step(make_rows(4), loss="sft")
    for _ in range(2):  # the second replaces the first
        weights = trainer.save_weights(tmp_path / "v1", version=1)
    assert (weights.version, weights.path) == (1, str(tmp_path / "v1"))
    assert [path.name for path in tmp_path.iterdir()] == ["v1"], "nothing else is left beside it"
    loaded = AutoModelForCausalLM.from_pretrained(weights.path, dtype=torch.float32)
    assert distance(parameters(trainer), [w.detach() for w in loaded.parameters()]) == 0
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert AutoTokenizer.from_pretrained(weights.path).eos_token == "<|im_end|>"
    assert Trainer(weights.path, TrainConfig()).score([5, 6, 7]) == trainer.score([5, 6, 7])


def test_a_head_tied_to_the_embedding_is_in_the_file_too(model_folder, make_rows, tmp_path):
    """Engines that replace weights in place, by name, would keep the head they have."""
    trainer = Trainer(model_folder, TrainConfig(lr=1e-2))
    trainer.step(make_rows(4), loss="sft")
    trainer.save_weights(tmp_path / "v1", version=1)
    written = load_file(tmp_path / "v1" / "model.safetensors")
    embedding = trainer.model.get_input_embeddings().weight
    assert torch.equal(written["lm_head.weight"], embedding)
    assert torch.equal(written["model.embed_tokens.weight"], embedding)


def test_a_failed_save_leaves_the_old_folder_whole(model_folder, tmp_path):
    trainer = Trainer(model_folder, TrainConfig())
    weights = trainer.save_weights(tmp_path / "v1", version=1)
    trainer.origin = tmp_path / "gone"
    with pytest.raises(StoreError, match="v1 cannot be written"):
        trainer.save_weights(tmp_path / "v1", version=1)
    assert [path.name for path in tmp_path.iterdir()] == ["v1"]
    assert Trainer(weights.path, TrainConfig()).score([5, 6]) == trainer.score([5, 6])


@pytest.mark.parametrize("limit", [1_000, 50_000, 100_000])
def test_a_full_disk_is_a_store_error(model_folder, make_rows, tmp_path, limit):
    trainer = Trainer(model_folder, TrainConfig())
    trainer.step(make_rows(2), loss="sft")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))  # no file may grow past it
    try:
        with pytest.raises(StoreError, match="step cannot be written"):
            trainer.save_checkpoint(tmp_path / "step")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_bfloat16_arithmetic_trains_float32_parameters(model_folder, make_rows):
    rows = make_rows(4, longest=16)
    trainer = Trainer(model_folder, TrainConfig(lr=1e-2, dtype="bfloat16"))
    losses = [trainer.step(rows, loss="sft").loss for _ in range(15)]
    assert losses[-1] < losses[0] - 1
    assert all(weight.dtype == torch.float32 for weight in trainer.model.parameters())


def test_mistakes_are_one_sentence(model_folder, tmp_path):
    with pytest.raises(ConfigError, match="device 'cuda:9'"):
        Trainer(model_folder, TrainConfig(device="cuda:9"))
    with pytest.raises(ConfigError, match="is no checkpoint"):
        Trainer(model_folder, TrainConfig()).load_checkpoint(tmp_path)


def test_the_schedule_rises_holds_and_falls():
    assert [schedule(step, 0.0, warmup=4) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert schedule(99, 0.5) == 1.0
    assert schedule(99, 0.75) == pytest.approx(0.5)
    assert schedule(99, 1.0) == 0.02
    assert schedule(99, 1.0, hold=1.0) == 1.0


def test_an_epoch_of_small_steps_lowers_the_loss(model_folder, make_rows):
    rows = make_rows(40, longest=20)
    trainer = Trainer(model_folder, TrainConfig(lr=5e-3, normalise="token"))
    losses = [trainer.step(step, loss="sft").loss for seed in range(8) for step in epoch(rows, 200, seed)]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
