"""The numbers of published runs, read off their scripts and pages and not off our presets: a preset that says
another one is wrong."""

from pathlib import Path

import pytest

from patchwright.recipes.presets import load_training

# preset: steps, tasks x samples, attempts at once, context, reply, ranks, engines x GPUs, share of a GPU,
# tokens of a micro-batch
REINFORCED = {
    "swe-rl-32b-8n": (2000, (8, 8), 128, 16_384, 4096, 8 * 4, (8, 4), 0.55, 8192),
    "swe-rl-32b-4n": (250, (4, 4), 2, 32_768, 4096, 4 * 4, (4, 4), 0.55, 8192),
    "swe-rl-8b-2n": (500, (8, 4), 2, 32_768, 4096, 2 * 4, (4, 2), 0.6, 16_384),
    "swe-rl-8b-prm-5n": (500, (8, 4), 4, 32_768, 4096, 4 * 4, (8, 2), 0.6, 16_384),
    "qwen3-coder-30b-qwen-code": (10, (4, 2), 4 * 2, 32_768, 16_384, 8, (1, 8), None, None),
}
SWE_RL = [name for name in REINFORCED if name.startswith("swe-rl")]


@pytest.mark.parametrize("name", REINFORCED)
def test_a_preset_of_reinforcement_has_the_numbers_of_its_run(name):
    given = load_training("rl", name, None, [])
    rl, line, cluster = given.rl, given.line, given.cluster
    steps, group, running, context, reply, ranks, engines, share, tokens = REINFORCED[name]
    assert (rl.steps, (rl.tasks_per_step, rl.samples_per_task)) == (steps, group)
    assert (line.concurrency, line.engine.max_context, line.sampling.max_tokens) == (running, context, reply)
    assert (rl.train.ranks, (cluster.engines, cluster.tensor_parallel)) == (ranks, engines)
    assert (rl.train.lr, rl.reward_resolved, rl.reward_unresolved) == (1e-6, 1.0, -1.0)
    assert share in (None, cluster.engine_memory) and tokens in (None, rl.train.micro_batch_tokens)


@pytest.mark.parametrize("name", SWE_RL)
def test_what_the_runs_of_swe_rl_have_in_common(name):
    given = load_training("rl", name, None, [])
    rl, line, loss = given.rl, given.line, given.rl.method.loss
    assert (rl.train.betas, rl.train.weight_decay) == ((0.9, 0.98), 0.1)
    assert (loss.clip_low, loss.clip_high, loss.kl, loss.entropy_coef) == (0.2, 0.28, "none", 0.0)
    assert (rl.max_staleness, rl.train.temperature, line.sampling.temperature) == (1, 1.0, 1.0)
    agent = line.agent
    assert (agent.max_turns, agent.exec_timeout, agent.context.head) == (20, 180, 0.3)
    assert agent.context.budget == line.engine.max_context - line.sampling.max_tokens


@pytest.mark.parametrize("name", SWE_RL)
def test_swe_rl_had_no_correction_and_the_page_says_that_a_preset_has_one(name):
    assert load_training("rl", name, None, []).rl.method.loss.correction == "tis"
    theirs = load_training("rl", name, None, ["rl.algorithm.correction=none"])
    assert theirs.rl.method.loss.correction == "none"
    page = Path(__file__).parents[2] / "docs" / "scale.md"
    assert "`-s rl.algorithm.correction=none`" in page.read_text(encoding="utf-8")


def test_the_run_with_process_reward_and_the_one_with_qwen_code():
    given = load_training("rl", "swe-rl-8b-prm-5n", None, [])
    judge, cluster = given.rl.scores.judge, given.cluster
    assert (judge.votes, judge.temperature, judge.max_tokens, given.rl.method.prm_coef) == (3, 1.0, 4096, 1.0)
    assert (cluster.nodes, cluster.judges, cluster.judge_parallel) == (5, 1, 8)
    given = load_training("rl", "qwen3-coder-30b-qwen-code", None, [])
    assert (given.line.agent.max_turns, given.line.sampling.temperature, given.line.sampling.top_p) == (
        50,
        0.7,
        0.95,
    )
    assert given.rl.method.advantage == "mean"


def test_swe_gyms_policy_and_verifier():
    policy = load_training("sft", "swe-gym-32b-sft", None, []).sft
    assert (policy.epochs, policy.max_length, policy.batch_tokens) == (5, 32_768, 8 * 32_768)
    assert (policy.schedule, policy.warmup_steps, policy.context_weight) == ("cosine", 5, 0.0)
    train = policy.train
    assert (train.lr, train.weight_decay, train.ranks, train.seed, train.lora) == (1e-4, 0.01, 8, 42, None)
    verifier = load_training("verifier", "swe-gym-32b-verifier", None, []).verifier
    assert (verifier.epochs, verifier.batch_tokens, verifier.warmup_steps) == (2, 8 * 32_768, 15)
    train, lora = verifier.train, verifier.train.lora
    assert lora is not None and (lora.rank, lora.alpha, len(lora.targets)) == (64, 64.0, 7)
    assert (train.lr, train.weight_decay, train.ranks) == (2e-4, 0.01, 1)
