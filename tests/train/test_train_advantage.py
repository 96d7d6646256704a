import numpy as np
import pytest

from patchwright.errors import ConfigError
from patchwright.train.advantage import group_advantages


def test_grpo_centres_and_scales_by_the_sample_deviation():
    rewards = [1.0, -1.0, -1.0, 0.5]
    wanted = (np.array(rewards) - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-4)
    np.testing.assert_allclose(group_advantages(rewards, kind="grpo"), wanted, rtol=1e-12)


def test_mean_only_centres():
    assert group_advantages([1.0, 0.0, 0.0, 1.0], kind="mean") == [0.5, -0.5, -0.5, 0.5]


@pytest.mark.parametrize("kind", ["grpo", "mean"])
def test_void_attempts_change_nothing_for_the_others(kind):
    valid = group_advantages([1.0, -1.0, -1.0], kind=kind)
    assert group_advantages([None, 1.0, -1.0, None, -1.0], kind=kind) == [
        None,
        valid[0],
        valid[1],
        None,
        valid[2],
    ]


@pytest.mark.parametrize("kind", ["grpo", "mean"])
@pytest.mark.parametrize("rewards", [[0.1] * 3, [1.0], [], [None, 0.3, None], [None, None]])
def test_constant_groups_get_exactly_zero(kind, rewards):
    assert group_advantages(rewards, kind=kind) == [None if r is None else 0.0 for r in rewards]


def test_an_unknown_kind_names_the_nearest():
    with pytest.raises(ConfigError, match="grpo"):
        group_advantages([1.0], kind="grp0")
