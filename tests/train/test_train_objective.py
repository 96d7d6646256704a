"""The policy losses inside the trainer: folded, cut into micro-batches, measured."""

import math
from dataclasses import replace

import pytest
import torch

from patchwright.errors import EngineError
from patchwright.train.algorithm import PRESETS, PolicyLoss
from patchwright.train.config import TrainConfig
from patchwright.train.trainer import Trainer

LOSSES = {name: preset.loss for name, preset in PRESETS.items()}
for kind in ("tis", "icepop", "sequence_tis", "sequence_mask"):
    LOSSES[kind] = PolicyLoss(correction=kind)
LOSSES["gspo_corrected"] = replace(LOSSES["gspo"], clip_low=0.2, clip_high=0.28, correction="tis")
LOSSES["kl_and_entropy"] = PolicyLoss(kl="k3", kl_coef=0.1, entropy_coef=0.01)


def sampled_by(trainer, rows, *, shift=0.0, noise=0.0):
    """Rows with the log-probs the trainer gives them, and a disagreement."""
    draw = torch.Generator().manual_seed(0)
    done = []
    for row in rows:
        gaps = shift + noise * torch.randn(len(row), generator=draw)
        logs = [a - b for a, b in zip((0.0, *trainer.score(row.token_ids)), gaps.tolist(), strict=True)]
        done.append(replace(row, logprobs=tuple(x * m for x, m in zip(logs, row.mask, strict=True))))
    return done


def gradients(trainer, rows, how):
    """Those an optimizer step at learning rate 0 has seen, and the metrics."""
    seen = {}
    hooks = [
        weight.register_post_accumulate_grad_hook(lambda w: seen.__setitem__(id(w), w.grad.clone()))
        for weight in trainer.model.parameters()
    ]
    metrics = trainer.step(rows, loss=how)
    for hook in hooks:
        hook.remove()
    return torch.cat([seen[id(weight)].flatten() for weight in trainer.model.parameters()]), metrics


def pairs(rows):
    """Two rows to an attempt."""
    return [replace(row, trajectory_id=f"t{index // 2}") for index, row in enumerate(rows)]


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_the_cut_into_micro_batches_changes_nothing(model_folder, make_rows, name):
    found = []
    for budget in (40, 100_000):
        trainer = Trainer(model_folder, TrainConfig(micro_batch_tokens=budget, lr=0.0))
        rows = pairs(sampled_by(trainer, make_rows(8), noise=0.3))
        found.append(gradients(trainer, rows, LOSSES[name]))
    (small, few), (big, many) = found
    assert small.abs().max() > 0
    torch.testing.assert_close(small, big, atol=1e-6, rtol=1e-4)
    assert few.loss == pytest.approx(many.loss, abs=1e-5)
    assert (few.clip_fraction, few.masked) == (many.clip_fraction, many.masked)
    assert few.drift == pytest.approx(many.drift, abs=1e-5)


@pytest.mark.parametrize("normalise", ["sequence", "token", "constant"])
def test_shares_of_a_step_computed_apart_add_up_to_it(model_folder, make_rows, normalise):
    """What ranks do: weights are scaled for the whole step, each rank sums its rows, gradients are added."""
    from patchwright.train.batch import normalise as scale
    from patchwright.train.loss import policy_loss
    from patchwright.train.model import collate, load_model, logprobs

    def gradient(rows):
        model = load_model(model_folder)
        batch = collate(rows)
        new = logprobs(model, batch)[0]
        loss, _ = policy_loss(new, batch.old_logprobs_N, batch.advantages_N, batch.weights_N)
        loss.backward()
        return torch.cat([weight.grad.flatten() for weight in model.parameters()])

    rows = scale(make_rows(6), normalise, constant=50.0)
    torch.testing.assert_close(gradient(rows[:2]) + gradient(rows[2:]), gradient(rows), atol=1e-6, rtol=1e-4)


def test_by_constant_an_update_does_not_depend_on_what_else_was_informative(model_folder, make_rows):
    """Attempts of flat groups train nothing and still count (Dr. GRPO): by `token` they would not."""
    for how, same in ((PRESETS["dr_grpo"].loss, False), (PRESETS["dapo"].loss, True)):
        trainer = Trainer(model_folder, TrainConfig(lr=0.0))
        rows = sampled_by(trainer, make_rows(6))
        flat = [replace(row, weights=(0.0,) * len(row)) for row in rows[3:]]
        alone, _ = gradients(trainer, rows[:3], how)
        beside, _ = gradients(trainer, [*rows[:3], *flat], how)
        torch.testing.assert_close(beside, alone if same else alone / 2, atol=1e-7, rtol=1e-4)


def test_gspo_takes_the_ratio_of_the_whole_attempt(model_folder, make_rows):
    """Rows of one attempt whose gaps cancel have ratio 1: not clipped, though each row's own would be."""
    trainer = Trainer(model_folder, TrainConfig(lr=0.0))
    row = replace(make_rows(1)[0], advantages=tuple(-1.0 * m for m in make_rows(1)[0].mask))
    (up,), (down,) = (sampled_by(trainer, [row], shift=s) for s in (0.5, -0.5))
    twins = [replace(r, trajectory_id="t") for r in (up, down)]
    assert trainer.step(twins, loss=LOSSES["gspo"]).clip_fraction == 0
    apart = trainer.step([replace(up, trajectory_id="a"), down], loss=LOSSES["gspo"])
    assert apart.clip_fraction == 0.5


@pytest.mark.parametrize("name", ["grpo", "gspo", "tis"])
def test_drift_is_what_the_engine_was_off_by_before_the_first_update(model_folder, make_rows, name):
    trainer = Trainer(model_folder, TrainConfig(lr=1e-2, minibatches=3))
    metrics = trainer.step(sampled_by(trainer, make_rows(6), shift=0.1), loss=LOSSES[name])
    assert metrics.updates == 3, "the later ones are off policy, and no drift"
    assert metrics.drift == pytest.approx(0.1, abs=1e-4)
    assert metrics.drift_max == pytest.approx(0.1, abs=1e-4)
    assert metrics.drift_kl == pytest.approx(math.exp(0.1) - 1.1, rel=1e-2)
    level = trainer.step(sampled_by(trainer, make_rows(6)), loss=LOSSES[name])
    assert level.drift < 1e-5


@pytest.mark.parametrize("name", ["grpo", "gspo", "icepop"])
def test_past_the_bound_nothing_is_trained_and_the_sentence_says_why(model_folder, make_rows, name):
    trainer = Trainer(model_folder, TrainConfig(lr=1e-2))
    rows = sampled_by(trainer, make_rows(4), shift=0.3)
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    with pytest.raises(EngineError, match=r"0\.300 nats a token .* rl\.max_drift \(0\.25\)"):
        trainer.step(rows, loss=replace(LOSSES[name], max_drift=0.25))
    lost = [replace(rows[0], logprobs=(*rows[0].logprobs[:-1], math.nan)), *rows[1:]]
    assert rows[0].weights[-1] > 0
    with pytest.raises(EngineError, match="disagree by nan nats a token"):
        trainer.step(lost, loss=replace(LOSSES[name], max_drift=0.25))
    after = list(trainer.model.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert all(weight.grad is None for weight in after)
    assert trainer.step(rows, loss=replace(LOSSES[name], max_drift=0.35)).updates == 1


def test_the_reference_is_the_model_the_trainer_started_from(model_folder, make_rows, tmp_path):
    pull = PolicyLoss(kl="k3", kl_coef=1.0)
    trainer = Trainer(model_folder, TrainConfig(lr=1e-2))
    rows = sampled_by(trainer, make_rows(4))
    assert trainer.step(rows, loss=pull).reference_kl == pytest.approx(0, abs=1e-6)
    for _ in range(4):
        trainer.step(rows, loss=PolicyLoss())
    away = trainer.step(rows, loss=pull).reference_kl
    assert away > 1e-3
    trainer.save_checkpoint(tmp_path / "1")
    resumed = Trainer(model_folder, TrainConfig(lr=1e-2))
    resumed.load_checkpoint(tmp_path / "1")
    assert resumed.step(rows, loss=pull).reference_kl > 1e-3, "the start of the run, not of the process"
    flat = [replace(row, advantages=(0.0,) * len(row)) for row in rows]
    for _ in range(20):
        last = trainer.step(flat, loss=pull)
    assert last.reference_kl < away / 2, "rows without an advantage are pulled back too"


@pytest.mark.parametrize("sign", [1, -1])
def test_the_entropy_bonus_moves_the_entropy(model_folder, make_rows, sign):
    trainer = Trainer(model_folder, TrainConfig(lr=3e-3))
    rows = [replace(row, advantages=(0.0,) * len(row)) for row in make_rows(4)]
    trainer.step(make_rows(4), loss="sft")  # away from the uniform distribution, where nothing is to gain
    first = trainer.step(rows, loss=PolicyLoss(entropy_coef=0.1 * sign)).entropy
    for _ in range(5):
        last = trainer.step(rows, loss=PolicyLoss(entropy_coef=0.1 * sign)).entropy
    assert (last - first) * sign > 0


def test_masks_are_counted(model_folder, make_rows):
    trainer = Trainer(model_folder, TrainConfig(lr=0.0))
    rows = sampled_by(trainer, make_rows(4), shift=1.0)  # trainer / engine = e
    assert trainer.step(rows, loss=LOSSES["tis"]).masked == 1.0
    assert trainer.step(rows, loss=LOSSES["icepop"]).masked == 0.0
    gradient, metrics = gradients(trainer, rows, LOSSES["sequence_mask"])
    assert metrics.masked == 1.0 and gradient.abs().max() == 0
