import math

import numpy as np
import pytest
import torch

from patchwright.train.loss import policy_loss, sft_loss, token_logprobs


def test_token_logprobs_and_entropy_against_numpy():
    logits = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    ids = np.array([0, 5, 2, 2])
    wanted = logits / 0.7 - np.log(np.exp(logits / 0.7).sum(-1, keepdims=True))
    logprobs, entropy = token_logprobs(torch.tensor(logits), torch.tensor(ids), temperature=0.7)
    np.testing.assert_allclose(logprobs, wanted[range(4), ids], atol=1e-6)
    np.testing.assert_allclose(entropy, -(np.exp(wanted) * wanted).sum(-1), atol=1e-6)


def test_sft_loss_is_the_weighted_cross_entropy():
    assert sft_loss(torch.tensor([-1.0, -3.0]), torch.tensor([0.75, 0.25])).item() == pytest.approx(1.5)


def test_policy_loss_against_numpy():
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
def test_the_gradient_stops_at_the_clip(ratio, advantage, moves):
    new = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, _ = policy_loss(new, torch.zeros(1), torch.tensor([advantage]), torch.ones(1))
    loss.backward()
    assert new.grad is not None
    assert new.grad.item() == pytest.approx(-ratio * advantage if moves else 0.0)


def test_on_policy_the_gradient_is_the_plain_policy_gradient():
    new = torch.tensor([-1.0, -2.0], requires_grad=True)
    loss, sums = policy_loss(new, new.detach(), torch.tensor([2.0, -1.0]), torch.tensor([0.5, 0.5]))
    loss.backward()
    assert new.grad is not None
    assert new.grad.tolist() == [-1.0, 0.5]
    assert (sums["clip_fraction"].item(), sums["kl"].item()) == (0, 0)


def test_an_absurd_ratio_stays_finite():
    loss, _ = policy_loss(torch.tensor([0.0]), torch.tensor([-500.0]), torch.tensor([-1.0]), torch.ones(1))
    assert math.isfinite(loss.item())
