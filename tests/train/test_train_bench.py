import pytest
import torch
from transformers import AutoModelForCausalLM

from patchwright.errors import ConfigError
from patchwright.train.batch import plan
from patchwright.train.bench import bench_train
from patchwright.train.bench_data import KINDS, Talks, attempts_of, merged, per_turn
from patchwright.train.bench_shape import SHAPES, bench_shape, flops_of
from patchwright.train.bench_share import bench_sharing
from patchwright.train.config import TrainConfig

TALKS = Talks(opening=20, turns=8, observation=6, reply=4, attempts=3)


def test_the_benchmark_measures_all_three(tiny):
    result = bench_train(rows=6, rounds=1, model=tiny)
    assert min(result.sft, result.policy, result.plain) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_made_up_attempts_train_the_same_tokens_however_they_are_cut(kind):
    attempts = attempts_of(kind, TALKS)
    rows, turns = merged(attempts), per_turn(attempts)
    assert len(turns) == 3 * 8
    trained = [sum(sum(row.weights) for row in data) for data in (rows, turns)]
    assert trained == [3 * 8 * 4] * 2
    assert len(rows) > 3 if kind == "head_tail" else len(rows) == 3
    assert max(map(len, rows)) <= (TALKS.length // 2 if kind == "head_tail" else TALKS.length)


def test_sharing_computes_less_where_there_is_something_to_share(tiny):
    linear, head_tail, group = bench_sharing(rounds=1, talks=TALKS, model=tiny)
    assert linear.turns > linear.rows == linear.shared
    assert head_tail.turns > head_tail.rows > head_tail.shared
    assert group.turns > group.rows > group.shared
    assert min(one.speedup for one in (linear, head_tail, group)) > 0


def test_a_shape_is_measured_alone_and_as_a_group():
    linear, group = bench_shape("tiny", length=128, attempts=2, rounds=1, device="cpu")
    assert linear.computed == linear.tokens and group.computed < group.tokens
    for one in (linear, group):
        assert 0 < one.mfu < 2 and one.tokens_per_second <= one.effective_tokens_per_second
    with pytest.raises(ConfigError, match=r"0\.6B"):
        bench_shape("0.6b", length=64)


def test_flops_are_those_of_a_forward_pass_three_times(model_folder, make_rows):
    """Against torch's own counter, which counts full attention squares and no embedding look-ups."""
    from torch.utils.flop_counter import FlopCounterMode

    (row,) = make_rows(1)
    model = AutoModelForCausalLM.from_pretrained(model_folder, attn_implementation="eager")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(input_ids=torch.tensor([row.token_ids]))
    count, width = len(row), 32
    sizes = {"num_attention_heads": 4, "head_dim": 8, "num_hidden_layers": 2}
    ours = flops_of([row], TrainConfig(), model.num_parameters(), sizes) / 3
    unseen = 4 * 2 * width * (count * count - count * (count + 1) // 2)
    norms = sum(weight.numel() for weight in model.parameters() if weight.dim() == 1) * 2 * count
    rotary = counter.get_total_flops() - ours - unseen + norms
    assert 0 <= rotary < 0.01 * ours


def test_shapes_have_the_parameters_of_their_names():
    for name, low, high in (("0.6B", 0.55e9, 0.65e9), ("4B", 3.9e9, 4.1e9)):
        s = SHAPES[name]
        width, kv = s["num_attention_heads"] * s["head_dim"], s["num_key_value_heads"] * s["head_dim"]
        layer = s["hidden_size"] * (2 * width + 2 * kv + 3 * s["intermediate_size"])
        assert low < s["vocab_size"] * s["hidden_size"] + s["num_hidden_layers"] * layer < high


def test_plans_of_made_up_groups_keep_the_opening_once():
    rows = merged(attempts_of("group", TALKS))
    (micro,) = plan(rows, 10_000, share=True)
    assert micro.computed == sum(map(len, rows)) - 2 * TALKS.opening
