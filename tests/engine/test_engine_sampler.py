from collections import Counter

import pytest
import torch

from patchwright.engine.sampler import Draw, sample, stream

PROBS = (0.4, 0.3, 0.15, 0.1, 0.05)


def draw_many(draw: Draw, count: int = 20_000) -> tuple[Counter[int], dict[int, float]]:
    """Ids and log-probs of one row's stream, `count` steps of it."""
    logits = torch.tensor(PROBS).log().expand(count, -1)
    ids, logprobs = sample(logits, [draw] * count, range(count))
    return Counter(ids), dict(zip(ids, logprobs, strict=True))


def expect(draw: Draw, probs: dict[int, float]) -> None:
    counts, logprobs = draw_many(draw)
    total = sum(counts.values())
    assert counts.keys() == probs.keys()
    chi_square = sum((counts[i] - total * p) ** 2 / (total * p) for i, p in probs.items())
    assert chi_square < 18.5  # 4 degrees of freedom, p = 0.001
    for token, p in probs.items():
        assert logprobs[token] == pytest.approx(torch.tensor(p).log().item(), abs=1e-5)


def test_draws_follow_the_distribution() -> None:
    expect(Draw(1.0, 0, 1.0, stream(1, [1])), dict(enumerate(PROBS)))


def test_temperature_sharpens() -> None:
    powered = [p**2 for p in PROBS]
    expect(Draw(0.5, 0, 1.0, stream(2, [1])), {i: p / sum(powered) for i, p in enumerate(powered)})


def test_top_k_and_top_p_renormalise_what_they_keep() -> None:
    expect(Draw(1.0, 2, 1.0, stream(3, [1])), {0: 4 / 7, 1: 3 / 7})
    expect(Draw(1.0, 0, 0.6, stream(4, [1])), {0: 4 / 7, 1: 3 / 7})
    # The nucleus is taken of the renormalised three: 0.47, 0.35, 0.18.
    expect(Draw(1.0, 3, 0.5, stream(5, [1])), {0: 4 / 7, 1: 3 / 7})
    expect(Draw(1.0, 0, 0.0, stream(6, [1])), {0: 1.0})


def test_rows_of_one_call_keep_their_own_rules() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [1.0, 3.0, 2.0]])
    draws = [Draw(0.0, 1, 0.5, 0), Draw(2.0, 1, 1.0, 1), Draw(1.0, 0, 1.0, stream(9, [2]))]
    ids, logprobs = sample(logits, draws, [0, 0, 0])
    assert ids[:2] == [1, 1]
    untempered = logits[0].log_softmax(-1)
    assert logprobs == pytest.approx([untempered[1].item(), 0.0, untempered[ids[2]].item()], abs=1e-6)


def test_streams_depend_on_seed_and_prompt_only() -> None:
    logits = torch.zeros(40, 1000)

    def drawn(seed: int, prompt: list[int]) -> list[int]:
        return sample(logits, [Draw(1.0, 0, 1.0, stream(seed, prompt))] * 40, range(40))[0]

    assert drawn(1, [5, 6]) == drawn(1, [5, 6])
    assert drawn(1, [5, 6]) != drawn(2, [5, 6])
    assert drawn(1, [5, 6]) != drawn(1, [5, 7])
    assert len(set(drawn(1, [5, 6]))) > 30


def test_a_token_of_probability_zero_is_never_drawn() -> None:
    logits = torch.full((5000, 8), -torch.inf)
    logits[:, 3] = 0.0
    ids, _ = sample(logits, [Draw(1.0, 0, 1.0, stream(1, [1]))] * 5000, range(5000))
    assert set(ids) == {3}
