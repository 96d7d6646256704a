"""Shared prefixes: the layout, the attention over it, and that losses and gradients are the naive ones."""

import random
from collections import Counter
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask
from transformers import AutoModelForCausalLM, MistralConfig, MistralForCausalLM

from patchwright.errors import ConfigError
from patchwright.train.algorithm import PolicyLoss
from patchwright.train.attention import (
    BLOCK,
    BlockAttention,
    PlacedTree,
    SegmentAttention,
    block_mask,
    enable_trees,
)
from patchwright.train.batch import normalise, plan
from patchwright.train.config import LoraConfig, TrainConfig
from patchwright.train.model import collate, load_model, logprobs
from patchwright.train.samples import samples
from patchwright.train.trainer import Trainer
from patchwright.train.tree import Forest, shared
from patchwright.types import Sample, Trajectory, Turn

ids_of_few_words = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple)
rows_that_meet = st.lists(ids_of_few_words, min_size=1, max_size=9)


def sees(forest):
    """Whom each token sees, as the definition says."""
    span = range(len(forest))
    return [[j <= i < forest.ends[j] for j in span] for i in span]


# --- layout -----------------------------------------------------------------------------------


@given(rows_that_meet)
def test_each_token_of_a_row_sees_its_row_up_to_itself_and_nothing_else(rows):
    forest = Forest.of(rows)
    seen = sees(forest)
    for row, places in zip(rows, forest.places, strict=True):
        assert tuple(forest.token_ids[place] for place in places) == row
        assert tuple(forest.depths[place] for place in places) == tuple(range(len(row)))
        for depth, place in enumerate(places):
            assert [j for j, yes in enumerate(seen[place]) if yes] == list(places[: depth + 1])


@given(rows_that_meet)
def test_a_forest_holds_each_distinct_prefix_once(rows):
    prefixes = {row[:length] for row in rows for length in range(1, len(row) + 1)}
    assert len(Forest.of(rows)) == len(prefixes)


@given(rows_that_meet)
def test_segments_say_the_same_as_ends(rows):
    forest = Forest.of(rows)
    seen = [[False] * len(forest) for _ in range(len(forest))]
    for segment in forest.segments:
        past = [place for first, last in segment.past for place in range(first, last)]
        for place in range(segment.start, segment.stop):
            for other in [*past, *range(segment.start, place + 1)]:
                seen[place][other] = True
    assert seen == sees(forest)


@given(ids_of_few_words, ids_of_few_words)
def test_the_common_prefix(first, second):
    length = next((i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), None)
    assert shared(first, second) == (min(len(first), len(second)) if length is None else length)


def test_rows_that_extend_each_other_are_one_segment_without_a_mask():
    forest = Forest.of([(1, 2), (1, 2, 3, 4), (1, 2, 3)])
    assert [(s.start, s.stop, s.past) for s in forest.segments] == [(0, 4, ())]


# --- attention --------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(rows_that_meet, st.integers(0, 99))
def test_segments_and_blocks_compute_masked_attention(rows, seed):
    forest = Forest.of(rows)
    torch.manual_seed(seed)
    q, k, v = (torch.randn(1, heads, len(forest), 8) for heads in (4, 2, 2))
    mask = torch.tensor(sees(forest))
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, enable_gqa=True, scale=0.3
    )
    for kind in (SegmentAttention, BlockAttention):
        torch.testing.assert_close(kind(forest, "cpu")(q, k, v, 0.3), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_the_block_mask_skips_what_nobody_sees(seed):
    """Against torch's own, which looks at every pair of tokens."""
    draw = random.Random(seed)
    stems = [tuple(draw.randrange(9) for _ in range(draw.randint(200, 500))) for _ in range(3)]
    rows = [
        draw.choice(stems) + tuple(draw.randrange(9) for _ in range(draw.randint(1, 200))) for _ in range(9)
    ]
    ends = torch.tensor(Forest.of(rows).ends)
    ours = block_mask(ends)
    theirs = create_block_mask(
        ours.mask_mod, None, None, len(ends), len(ends), device="cpu", BLOCK_SIZE=BLOCK
    )
    assert torch.equal(ours.to_dense(), theirs.to_dense())
    assert torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)
    assert int(ours.full_kv_num_blocks.sum()) > 0


# --- the same gradients as one sample per turn ------------------------------------------------


def random_talk(draw, name, opening, words=40):
    """An attempt whose turns extend, branch, or start anew with the opening and some of what was said: what
    plain talk, retries and a policy that leaves out the middle make."""
    turns, said = [], []
    for index in range(draw.randint(2, 6)):
        parent = draw.choice([None, *range(index)]) if index else None
        prompt = tuple(draw.randrange(3, words) for _ in range(draw.randint(1, 6)))
        if parent is None:
            prompt = opening + tuple(said[len(said) // 2 :]) + prompt
        completion = tuple(draw.randrange(3, words) for _ in range(draw.randint(0, 8)))
        said += prompt[-4:] + completion
        turns.append(
            Turn(
                id=index,
                parent=parent,
                prompt_ids=prompt,
                completion_ids=completion,
                logprobs=tuple(draw.uniform(-6, -4) for _ in completion),
                train=draw.random() < 0.9,
            )
        )
    return Trajectory(id=name, task_id="k", turns=tuple(turns))


def random_group(seed):
    draw = random.Random(seed)
    opening = tuple(draw.randrange(3, 40) for _ in range(draw.randint(5, 30)))
    talks = [random_talk(draw, f"t{index}", opening) for index in range(draw.randint(2, 5))]
    return [(talk, draw.choice([-1.2, 0.7, 1.0])) for talk in talks]


def naive_rows(talk, advantage):
    """One sample per turn: everything the engine saw, with only this turn's completion trained."""

    def context(turn):
        parent = talk.turns[turn.parent] if turn.parent is not None else None
        return (context(parent) + parent.completion_ids if parent else ()) + turn.prompt_ids

    for turn in talk.turns:
        if turn.train and turn.completion_ids:
            before = context(turn)
            zeros, count = (0.0,) * len(before), len(turn.completion_ids)
            yield Sample(
                trajectory_id=talk.id,
                token_ids=before + turn.completion_ids,
                mask=(0,) * len(before) + (1,) * count,
                logprobs=zeros + turn.logprobs,
                advantages=zeros + (advantage,) * count,
                weights=zeros + (1.0,) * count,
            )


def naive_gradient(folder, rows, kind, normalisation):
    """Every row through plain transformers by itself; the losses written out."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    total = 0.0
    for row in normalise(rows, normalisation):
        logits = model(input_ids=torch.tensor([row.token_ids])).logits[0, :-1]
        new = logits.log_softmax(-1).gather(-1, torch.tensor(row.token_ids[1:])[:, None])[:, 0]
        old, advantage, weight = (torch.tensor(x[1:]) for x in (row.logprobs, row.advantages, row.weights))
        if kind == "sft":
            loss = -(weight * new).sum()
        else:
            ratio = (new - old).exp()
            bound = ratio.clamp(0.8, 1.28) * advantage
            loss = -(weight * torch.minimum(ratio * advantage, bound)).sum()
        loss.backward()
        total += loss.item()
    return total, [weight.grad for weight in model.parameters()]


def planned_gradient(folder, rows, kind, **config):
    """The trainer's way: normalise, plan, collate, one backward pass a micro-batch."""
    trainer = Trainer(folder, TrainConfig(lr=0.0, clip_norm=1e9, **config))
    kept = {}
    trained = [weight for weight in trainer.model.parameters() if weight.requires_grad]
    for weight in trained:
        weight.register_post_accumulate_grad_hook(lambda w: kept.update({id(w): w.grad.clone()}))
    metrics = trainer.step(rows, loss=kind)
    return metrics, [kept[id(weight)] for weight in trained]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("kind", "normalisation"), [("sft", "token"), ("policy", "sequence")])
def test_loss_and_gradient_equal_one_sample_per_turn(model_folder, seed, kind, normalisation):
    group = random_group(seed)
    naive = [row for talk, advantage in group for row in naive_rows(talk, advantage)]
    ours = [row for talk, advantage in group for row in samples(talk, advantage=advantage)]
    loss, wanted = naive_gradient(model_folder, naive, kind, normalisation)
    for budget in (10_000, 150):  # all trees packed together; cut into several
        metrics, gradient = planned_gradient(
            model_folder, ours, kind, normalise=normalisation, micro_batch_tokens=budget
        )
        assert metrics.loss == pytest.approx(loss, abs=1e-5)
        for a, b in zip(gradient, wanted, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
        assert metrics.trained == sum(weight > 0 for row in naive for weight in row.weights)
    assert metrics.computed < sum(map(len, naive))


@pytest.mark.parametrize(
    "loss",
    [
        PolicyLoss(normalise="token"),
        PolicyLoss(surrogate="cispo", normalise="constant"),
        PolicyLoss(surrogate="reinforce", entropy_coef=0.01),
        PolicyLoss(surrogate="gspo", clip_low=0.01, clip_high=0.01),
        PolicyLoss(correction="tis"),
        PolicyLoss(kl="k3", kl_coef=0.1),
    ],
    ids=str,
)
def test_every_loss_is_the_same_with_shared_prefixes(model_folder, loss):
    group = random_group(7)
    naive = [row for talk, advantage in group for row in naive_rows(talk, advantage)]
    ours = [row for talk, advantage in group for row in samples(talk, advantage=advantage)]
    wanted, gradient = planned_gradient(model_folder, naive, loss, share_prefixes=False, micro_batch_tokens=1)
    metrics, shared_gradient = planned_gradient(model_folder, ours, loss, micro_batch_tokens=10_000)
    assert metrics.loss == pytest.approx(wanted.loss, abs=1e-5)
    assert metrics.computed < wanted.computed
    for a, b in zip(shared_gradient, gradient, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_adapters_and_recomputed_layers_train_the_same_with_shared_prefixes(model_folder):
    rows = [row for talk, advantage in random_group(5) for row in samples(talk, advantage=advantage)]
    how = {"lora": LoraConfig(rank=4), "recompute": True, "micro_batch_tokens": 10_000}
    moved = [planned_gradient(model_folder, rows, "policy", share_prefixes=s, **how) for s in (False, True)]
    (plain, first), (shared_step, second) = moved
    assert shared_step.computed < plain.computed and first
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@given(st.integers(0, 99), st.integers(1, 400))  # elsewhere two log-probs may be alike, and count as one
@settings(max_examples=50, deadline=None)
def test_every_sampled_token_is_trained_once_whatever_is_shared(seed, budget):
    """Its weight, advantage and log-prob arrive at the place where it is predicted, and no other's do."""
    group = random_group(seed)
    rows = [row for talk, advantage in group for row in samples(talk, advantage=advantage)]
    wanted = Counter(
        (row.token_ids, row.advantages[-1], old)
        for talk, advantage in group
        for row in naive_rows(talk, advantage)
        for old in row.logprobs
        if old
    )
    found = Counter()
    for micro in plan(rows, budget, share=True):
        assert micro.computed <= budget or len(micro.rows) == 1
        batch = collate(micro.rows, "cpu", micro.forest)
        found += Counter(batch.old_logprobs_N.tolist())
    assert sum(found.values()) == sum(wanted.values())
    assert set(found) == {torch.tensor(old).item() for _, _, old in wanted}
    assert max(found.values(), default=1) == 1


def test_a_group_computes_its_prompt_once(make_rows):
    rows = make_rows(6, longest=30)
    prompt = tuple(range(3, 103))
    group = [replace_ids(row, prompt) for row in rows]
    (micro,) = plan(group, 1000, share=True)
    assert micro.computed == 100 + sum(map(len, rows))
    padded = plan(group, 1000, share=False)
    assert sum(m.computed for m in padded) >= sum(map(len, group))


def replace_ids(row, prompt):
    zeros = (0.0,) * len(prompt)
    return replace(
        row,
        token_ids=prompt + row.token_ids,
        mask=(0,) * len(prompt) + row.mask,
        logprobs=zeros + row.logprobs,
        advantages=zeros + row.advantages,
        weights=zeros + row.weights,
    )


def test_rows_that_share_little_stay_a_plain_batch(make_rows):
    """The fast path: no mask, no forest, and what it was without sharing."""
    rows = [row for row in make_rows(60) if len(row) > 36]
    assert len(rows) > 4
    assert plan(rows, 300, share=True) == plan(rows, 300, share=False)
    assert all(micro.forest is None for micro in plan(rows, 300, share=True))


@pytest.mark.parametrize("loss", ["sft", "policy"])
def test_rows_of_unlike_length_are_packed_and_train_what_they_do_alone(model_folder, make_rows, loss):
    rows = make_rows(12)
    packed = plan(rows, 300, share=True)
    assert any(micro.forest and micro.computed == sum(map(len, micro.rows)) for micro in packed)
    assert sum(m.computed for m in packed) < sum(m.computed for m in plan(rows, 300, share=False))
    alone, wanted = planned_gradient(model_folder, rows, loss, share_prefixes=False, micro_batch_tokens=1)
    metrics, gradient = planned_gradient(model_folder, rows, loss, micro_batch_tokens=300)
    assert metrics.computed == sum(m.computed for m in packed)
    assert metrics.loss == pytest.approx(alone.loss, abs=1e-5)
    for a, b in zip(gradient, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_packed_rows_see_nothing_of_each_other(model_folder, make_rows):
    model = load_model(model_folder)
    enable_trees(model)
    *others, last = (replace_ids(row, (at,)) for at, row in enumerate(make_rows(4), start=3))
    turned = [replace(row, token_ids=(row.token_ids[0], *row.token_ids[:0:-1])) for row in others]
    trained = sum(weight > 0 for weight in last.weights)
    one, two = (
        logprobs(model, collate([*rows, last], "cpu", Forest.of([r.token_ids for r in (*rows, last)])))[0]
        for rows in (others, turned)
    )
    assert torch.equal(one[-trained:], two[-trained:]) and not torch.equal(one, two)


@torch.no_grad()
def test_blocks_within_the_model_equal_rows_alone(model_folder):
    """What CUDA computes, here without a compiler."""
    rows = [row for talk, a in random_group(3) for row in samples(talk, advantage=a)]
    model = load_model(model_folder)
    enable_trees(model)
    forest = Forest.of([row.token_ids for row in rows])
    batch = collate(rows, "cpu", forest)
    assert batch.tree is not None
    blocks = replace(batch, tree=PlacedTree(batch.tree.depths_1T, BlockAttention(forest, "cpu")))
    alone = torch.cat([logprobs(model, collate([row]))[0] for row in rows])
    for tree in (batch, blocks):
        torch.testing.assert_close(logprobs(model, tree)[0], alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_plain_rows_are_computed_as_before_to_the_bit(model_folder, make_rows):
    plain, enabled = load_model(model_folder), load_model(model_folder)
    enable_trees(enabled)
    batch = collate(make_rows(5))
    assert torch.equal(logprobs(plain, batch)[0], logprobs(enabled, batch)[0])


def test_models_that_see_through_a_window_are_refused(tmp_path):
    config = MistralConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=16,
        sliding_window=4,
    )
    MistralForCausalLM(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="share_prefixes = false"):
        enable_trees(load_model(tmp_path))
