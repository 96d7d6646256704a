import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.train import rl_reference as paper

from patchwright.train.algorithm import PRESETS, PolicyLoss
from patchwright.train.batch import normalise
from patchwright.train.loss import kl_loss, policy_loss, sft_loss, token_logprobs
from patchwright.train.ratio import corrected, sequence_clipped
from patchwright.types import Sample

SEEDS = st.integers(0, 99)
"""All of them hold; at some seeds past them a finite difference crosses a kink of the loss."""
LOSSES = {name: preset.loss for name, preset in PRESETS.items()}
LOSSES["gspo_wide"] = PolicyLoss(surrogate="gspo")
LOSSES["ppo_constant"] = PolicyLoss(normalise="constant", constant_tokens=7)
LOSSES["cispo_narrow"] = PolicyLoss(surrogate="cispo", normalise="sequence")


def rows_of(old, advantages, chains=1):
    """A sample per attempt (or two, its tokens dealt to them): one prompt token, then the sampled ones."""
    rows = []
    for i, tokens in enumerate(old):
        cuts = [len(tokens)] if chains == 1 or len(tokens) < 2 else [len(tokens) // 2, len(tokens)]
        for start, stop in zip([0, *cuts], cuts, strict=False):
            part = tokens[start:stop]
            rows.append(
                Sample(
                    trajectory_id=f"t{i}",
                    token_ids=(1,) * (len(part) + 1),
                    mask=(0,) + (1,) * len(part),
                    logprobs=(0.0, *part),
                    advantages=(0.0,) + (advantages[i],) * len(part),
                    weights=(0.0,) + (1.0,) * len(part),
                )
            )
    return rows


def per_row(rows, values):
    """Tokens of attempts, laid out as the rows are."""
    flat = [value for row in values for value in row]
    places = iter(flat)
    return [[next(places) for _ in range(len(row) - 1)] for row in rows]


def ours(how, rows, new):
    """Loss and gradient per token of rows whose tokens now have log-probs `new`."""
    count = len({row.trajectory_id for row in rows})
    ready = normalise(rows, how.normalise, constant=how.constant_tokens * count)
    if how.surrogate == "gspo":
        ready, _ = sequence_clipped(ready, new, how)
    leaf = torch.tensor([x for row in new for x in row], dtype=torch.float64, requires_grad=True)

    def gather(field):
        return torch.tensor([x for row in ready for x in getattr(row, field)[1:]], dtype=torch.float64)

    loss, sums = policy_loss(leaf, gather("logprobs"), gather("advantages"), gather("weights"), how)
    loss.backward()
    return loss.item(), leaf.grad.tolist(), sums


def draw(seed, spread=0.4):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 6, size=rng.integers(1, 5))
    old = [rng.normal(-1.5, 0.5, size=n).tolist() for n in lengths]
    new = [[x + rng.normal(0, spread) for x in row] for row in old]
    return old, new, rng.normal(size=len(lengths)).tolist()


@pytest.mark.parametrize("chains", [1, 2])
@pytest.mark.parametrize("name", sorted(LOSSES))
@settings(max_examples=25, deadline=None)
@given(seed=SEEDS)
def test_gradients_are_those_of_the_papers_objective(name, chains, seed):
    how = LOSSES[name]
    old, new, advantages = draw(seed, 2e-3 if how.surrogate == "gspo" and how.clip_high < 0.01 else 0.4)

    def objective(values):
        bounds = how.clip_low, how.clip_high, how.normalise, how.constant_tokens
        return paper.loss(how.surrogate, values, old, new, advantages, *bounds)

    rows = rows_of(old, advantages, chains)
    value, gradient, _ = ours(how, rows, per_row(rows, new))
    wanted = [x for row in paper.gradient(objective, new) for x in row]
    np.testing.assert_allclose(gradient, wanted, rtol=1e-5, atol=1e-7)
    if how.surrogate in ("ppo", "cispo"):
        assert value == pytest.approx(objective(new), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("kind", ["tis", "icepop", "sequence_tis", "sequence_mask"])
@settings(max_examples=30, deadline=None)
@given(seed=SEEDS)
def test_corrections_weigh_tokens_by_trainer_over_engine_probability(kind, seed):
    engine, trainer, advantages = draw(seed, spread=0.8)
    how = PolicyLoss(correction=kind)
    rows = rows_of(engine, advantages, chains=2)
    fixed, changed = corrected(rows, per_row(rows, trainer), how)
    weights = per_row(rows, paper.correction(kind, trainer, engine, *how.bounds))
    full = per_row(rows, paper.correction(kind, trainer, engine, 0.0, math.inf))
    for row, found, wanted, logs in zip(rows, fixed, weights, per_row(rows, trainer), strict=True):
        expected = [w * row.advantages[1] for w in wanted]
        assert found.advantages[1:] == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert found.logprobs[1:] == tuple(logs)
        assert found.weights == row.weights, "the normalisation stays"
    pairs = [(a, b) for x, y in zip(weights, full, strict=True) for a, b in zip(x, y, strict=True)]
    assert changed == sum(a != pytest.approx(b, rel=1e-12) for a, b in pairs)


def test_a_correction_can_be_given_other_bounds():
    rows = rows_of([[-1.0, -1.0]], [1.0])
    current = [[-1.0 + math.log(3), -1.0 + math.log(0.3)]]
    for low, high, wanted in ((None, None, (3.0, 0.0)), (0.2, 2.0, (0.0, 0.3))):
        how = PolicyLoss(correction="icepop", correction_low=low, correction_high=high)
        assert corrected(rows, current, how)[0][0].advantages[1:] == pytest.approx(wanted)


def test_clip_higher_stops_later_upwards_than_downwards():
    how = PRESETS["dapo"].loss
    assert (how.clip_low, how.clip_high, how.normalise) == (0.2, 0.28, "token")


@pytest.mark.parametrize(
    ("ratio", "advantage", "moves"),
    [
        (1.27, 1.0, True),
        (1.29, 1.0, False),  # already more likely by more than the upper bound
        (1.29, -1.0, True),
        (0.79, 1.0, True),
        (0.79, -1.0, False),  # already less likely by more than the lower bound
        (0.81, -1.0, True),
    ],
)
@pytest.mark.parametrize("surrogate", ["ppo", "gspo", "cispo"])
def test_the_gradient_stops_at_the_clip(surrogate, ratio, advantage, moves):
    how = PolicyLoss(surrogate=surrogate)
    _, (gradient,), sums = ours(how, rows_of([[0.0]], [advantage]), [[math.log(ratio)]])
    if surrogate == "cispo":  # no token is dropped, its weight is bounded
        assert gradient == pytest.approx(-min(1.28, max(0.8, ratio)) * advantage)
    else:
        assert gradient == pytest.approx(-ratio * advantage if moves else 0.0)
    if surrogate == "ppo":
        assert sums["clip_fraction"].item() == (not moves)


@pytest.mark.parametrize("name", sorted(LOSSES))
def test_on_policy_every_loss_has_the_plain_policy_gradient(name):
    old, _, advantages = draw(3)
    how = LOSSES[name]
    _, gradient, sums = ours(how, rows_of(old, advantages), old)
    ready = normalise(rows_of(old, advantages), how.normalise, constant=how.constant_tokens * len(old))
    wanted = [-w * a for row in ready for w, a in zip(row.weights[1:], row.advantages[1:], strict=True)]
    assert gradient == pytest.approx(wanted)
    assert (sums["clip_fraction"].item(), sums["kl"].item()) == (0, 0)


def test_grpos_value_and_figures_against_numpy():
    rng = np.random.default_rng(1)
    new, old, advantage = rng.normal(-1, 0.4, 50), rng.normal(-1, 0.4, 50), rng.normal(size=50)
    weight = rng.uniform(size=50)
    ratio = np.exp(new - old)
    wanted = -(weight * np.minimum(ratio * advantage, np.clip(ratio, 0.8, 1.28) * advantage)).sum()
    loss, sums = policy_loss(*(torch.tensor(x) for x in (new, old, advantage, weight)))
    assert loss.item() == pytest.approx(wanted)
    binds = ((ratio > 1.28) & (advantage > 0)) | ((ratio < 0.8) & (advantage < 0))
    assert sums["clip_fraction"].item() == binds.sum()
    assert sums["kl"].item() == pytest.approx((ratio - 1 - np.log(ratio)).sum(), rel=1e-5)


@pytest.mark.parametrize("surrogate", ["ppo", "cispo", "gspo"])
def test_an_absurd_ratio_stays_finite(surrogate):
    value, gradient, _ = ours(PolicyLoss(surrogate=surrogate), rows_of([[-500.0]], [-1.0]), [[0.0]])
    assert math.isfinite(value) and math.isfinite(gradient[0])


# --- KL, entropy, log-probs -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["k1", "k2", "k3"])
@settings(max_examples=20, deadline=None)
@given(seed=SEEDS)
def test_kl_estimators_and_their_gradients(kind, seed):
    rng = np.random.default_rng(seed)
    model, reference, weight = rng.normal(-1, 1, 6), rng.normal(-1, 1, 6), rng.uniform(size=6)

    def wanted(values):
        total = 0.0
        for t in range(6):
            r = math.exp(reference[t] - values[0][t])
            log = math.log(r)
            total += weight[t] * {"k1": -log, "k2": log * log / 2, "k3": r - 1 - log}[kind]
        return total

    leaf = torch.tensor(model, requires_grad=True)
    loss = kl_loss(leaf, torch.tensor(reference), torch.tensor(weight), kind)
    loss.backward()
    assert loss.item() == pytest.approx(wanted([model]))
    np.testing.assert_allclose(leaf.grad, paper.gradient(wanted, [list(model)])[0], rtol=1e-5, atol=1e-6)


def test_k1_and_k3_are_unbiased_and_k2s_gradient_is_the_divergences():
    """Exact expectations over a distribution of four, instead of samples."""
    logits = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
    other = torch.tensor([0.1, 0.4, -0.3, 0.0], dtype=torch.float64).log_softmax(-1)
    divergence = (logits.softmax(-1) * (logits.log_softmax(-1) - other)).sum()
    (true_gradient,) = torch.autograd.grad(divergence, logits)
    for kind, unbiased, right in (("k1", True, False), ("k2", False, True), ("k3", True, False)):
        logs = logits.log_softmax(-1)
        value = kl_loss(logs, other, logits.detach().softmax(-1), kind)
        (gradient,) = torch.autograd.grad(value, logits)
        assert (value.item() == pytest.approx(divergence.item(), rel=1e-9)) == unbiased
        assert torch.allclose(gradient, true_gradient) == right
        assert (gradient.abs().max() < 1e-9) == (kind == "k1")


def test_token_logprobs_and_entropy_against_numpy():
    logits = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    ids = np.array([0, 5, 2, 2])
    wanted = logits / 0.7 - np.log(np.exp(logits / 0.7).sum(-1, keepdims=True))
    logprobs, entropy = token_logprobs(torch.tensor(logits), torch.tensor(ids), temperature=0.7)
    np.testing.assert_allclose(logprobs, wanted[range(4), ids], atol=1e-6)
    np.testing.assert_allclose(entropy, -(np.exp(wanted) * wanted).sum(-1), atol=1e-6)


def test_the_entropy_has_a_gradient_only_when_asked():
    logits = torch.tensor([[0.1, 0.7, -0.4]], dtype=torch.float64, requires_grad=True)
    assert not token_logprobs(logits, torch.tensor([1]))[1].requires_grad
    entropy = token_logprobs(logits, torch.tensor([1]), train_entropy=True)[1].sum()
    entropy.backward()

    def wanted(values):
        total = sum(math.exp(x) for x in values[0])
        return -sum(math.exp(x) / total * math.log(math.exp(x) / total) for x in values[0])

    np.testing.assert_allclose(
        logits.grad[0], paper.gradient(wanted, [logits[0].tolist()])[0], rtol=1e-4, atol=1e-6
    )


def test_sft_loss_is_the_weighted_cross_entropy():
    assert sft_loss(torch.tensor([-1.0, -3.0]), torch.tensor([0.75, 0.25])).item() == pytest.approx(1.5)
