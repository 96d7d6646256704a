"""slime's loop with Patchwright plugged in: real boxes, real tests, a router that answers from a script."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.grade.test_grader import TASK
from tests.integrations.slime_stand_in import (
    GenerateState,
    Router,
    Sample,
    evaluate,
    filtered,
    generate_and_rm,
    load_function,
    make_args,
    roll_out,
    sampling_params,
    slime_installed,
    train_data,
)

from patchwright.errors import ConfigError, InfraError
from patchwright.integrations import slime
from patchwright.render import CHATML, Renderer
from patchwright.tasks.files import dump_tasks
from patchwright.train.tokenizer import save_tokenizer, train_tokenizer

SUBMIT = "```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```"
SED = "```bash\nsed -i 's/x + 2/x * 2/' mod.py\n```"
LINE = """
[line]
retries = 0
concurrency = {concurrency}
[line.agent]
system = ""
instance = "{{{{ task.prompt }}}}"
max_turns = 3
patience = 0.0
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, two tasks, and Patchwright's files."""
    made = tmp_path_factory.mktemp("slime")
    save_tokenizer(train_tokenizer([], vocab_size=260), made / "model", chat_template=CHATML)
    dump_tasks(made / "tasks.jsonl", [TASK, replace(TASK, id="twin", prompt="The twin of it.")])
    dump_tasks(made / "eval.jsonl", [replace(TASK, id="held-out", prompt="Something else.")])
    (made / "line.toml").write_text(LINE.format(concurrency=4))
    (made / "one.toml").write_text(LINE.format(concurrency=1))
    (made / "step.toml").write_text(LINE.format(concurrency=4) + '[rl.algorithm]\nname = "step"\n')
    return made


def run(
    folder: Path,
    work: Callable[[Any, Router], Awaitable[Any]],
    reply: Callable[[str, str], str],
    **given: Any,
) -> Any:
    """What `work(args, router)` comes to, in a process that has slime."""

    async def main() -> Any:
        router = Router(Renderer.load(str(folder / "model")), reply)
        async with router.serving() as port:
            known = {
                "hf_checkpoint": str(folder / "model"),
                "prompt_data": str(folder / "tasks.jsonl"),
                "patchwright": str(folder / "line.toml"),
                "sglang_router_port": port,
                "router_policy": "consistent_hashing",
            }
            try:
                return await work(make_args(**{**known, **given}), router)
            finally:
                await slime.close_host()

    with slime_installed():
        return asyncio.run(asyncio.wait_for(main(), 300))


def even_fix(prompt: str, key: str) -> str:
    """Samples of an even index repair the module, the others submit at once; all do at the twin."""
    fixes = key in ("session-0", "session-2", "session-3")
    return SED if fixes and "sed -i" not in prompt else SUBMIT


def test_a_round_from_tasks_to_training_data(folder: Path):
    async def work(args: Any, router: Router):
        source = load_function(args.data_source_path)(args)
        assert len(source) == 2
        groups = source.get_samples(args.rollout_batch_size)
        assert [[(s.group_index, s.index, s.label) for s in g] for g in groups] == [
            [(0, 0, "double"), (0, 1, "double")],
            [(1, 2, "twin"), (1, 3, "twin")],
        ]
        made = await roll_out(args, groups)
        kept, dropped = filtered(args, made)
        return made, dropped, train_data(args, kept), train_data(args, made), router

    made, dropped, data, both, router = run(folder, work, even_fix)
    assert dropped == ["same_reward_1.0"]
    assert data["raw_reward"] == [1.0, -1.0] and data["rollout_ids"] == [0, 1]
    assert data["rewards"] == pytest.approx([0.7071, -0.7071], abs=1e-3)
    assert both["rewards"][2:] == [0.0, 0.0] and both["raw_reward"] == [1.0, -1.0, 1.0, 1.0]
    fixed = made[0][0][0]
    assert fixed.status is Sample.Status.COMPLETED and fixed.weight_versions == ["7", "7"]
    assert fixed.prefix_cache_info.cached_tokens == 6 and fixed.metadata["patchwright"]["state"] == "resolved"
    assert set(router.keys) == {f"session-{index}" for index in range(4)}
    params = router.asked[0]["sampling_params"]
    assert params["max_new_tokens"] == 400 and params["top_k"] == -1 and params["temperature"] == 1.0


def test_every_sampled_token_is_trained_once_as_it_was_sampled(folder: Path):
    async def work(args: Any, router: Router):
        source = load_function(args.data_source_path)(args)
        made = await roll_out(args, source.get_samples(1))
        return [sample for siblings in made[0] for sample in siblings], router

    samples, router = run(folder, work, even_fix)
    trained = []
    for sample in samples:
        start = len(sample.tokens) - sample.response_length
        trained += [
            (token, logprob)
            for token, mask, logprob in zip(
                sample.tokens[start:], sample.loss_mask, sample.rollout_log_probs, strict=True
            )
            if mask
        ]
        assert sample.loss_mask[0] == 1
    drawn = [pair for _, ids, logprobs in router.sampled for pair in zip(ids, logprobs, strict=True)]
    assert sorted(trained) == sorted(drawn) and len(drawn) > 50


def test_step_wise_every_turn_is_a_sample_with_its_own_advantage(folder: Path):
    async def work(args: Any, router: Router):
        source = load_function(args.data_source_path)(args)
        made = await roll_out(args, source.get_samples(1))
        return made, train_data(args, made), router

    made, data, router = run(folder, work, even_fix, patchwright=str(folder / "step.toml"))
    fixed, other = made[0]
    assert [s.metadata["patchwright"]["turn"] for s in fixed] == [0, 1] and len(other) == 1
    assert data["rollout_ids"] == [0, 0, 1]
    assert data["rewards"] == pytest.approx(
        [1.0, 0.0, -1.0], abs=1e-3
    )  # alone at its place: nothing to learn
    assert len(set(data["rollout_mask_sums"][:2])) == 1
    completions = [ids for _, ids, _ in router.sampled]
    for sample in (*fixed, *other):
        assert all(sample.loss_mask) and sample.tokens[-sample.response_length :] in completions


def test_a_void_attempt_is_a_masked_sample_that_counts_nowhere(folder: Path):
    async def work(args: Any, router: Router):
        source = load_function(args.data_source_path)(args)
        (group,) = source.get_samples(1)
        group[0].session_id = "session-0"
        first = await generate_and_rm(args, group[0])
        router.status = 500
        second = await generate_and_rm(args, group[1])
        return first, second, train_data(args, [[first, second]]), filtered(args, [[first, second]])

    first, second, data, (kept, dropped) = run(folder, work, even_fix)
    (void,) = second
    assert void.status is Sample.Status.ABORTED and void.remove_sample and void.reward == 0.0
    assert "no worker is there" in void.metadata["patchwright"]["void"]
    assert data["rewards"] == [0.0, 0.0] and data["raw_reward"] == [1.0, 1.0]
    assert data["loss_masks"][1] == [0] and data["rollout_ids"] == [0, 1]
    assert kept == [] and dropped == ["void"]
    assert not first[0].remove_sample


def test_an_attempt_that_slime_breaks_off_ends_soon(folder: Path):
    async def work(args: Any, router: Router):
        router.hang = True
        (group,) = load_function(args.data_source_path)(args).get_samples(1)
        making = asyncio.create_task(generate_and_rm(args, group[0]))
        await router.reached.wait()
        GenerateState.aborted = True
        return await asyncio.wait_for(making, 60)

    (void,) = run(folder, work, even_fix)
    assert void.status is Sample.Status.ABORTED
    assert void.metadata["patchwright"]["void"] == "slime broke the round off"


def test_a_run_in_which_nothing_works_stops(folder: Path):
    async def work(args: Any, router: Router):
        router.status = 500
        (group,) = load_function(args.data_source_path)(args).get_samples(1)
        await generate_and_rm(args, group[0])
        with pytest.raises(InfraError, match=r"last 2 attempts were all void.*no worker is there"):
            await generate_and_rm(args, group[1])

    run(folder, work, even_fix, patchwright=str(folder / "one.toml"))


def test_an_evaluation_has_one_sample_an_attempt_and_no_void_ones(folder: Path):
    async def work(args: Any, router: Router):
        prompts = [Sample(prompt="Something else.", label="held-out") for _ in range(2)]
        good = await evaluate(args, "held-out", prompts)
        router.status = 500
        lost = await evaluate(args, "held-out", prompts)
        return good, lost

    sets = [SimpleNamespace(path=str(folder / "eval.jsonl") + "@[0:1]", custom_generate_function_path=None)]
    keys = {"reward_key": "score", "eval_reward_key": "resolved"}
    good, lost = run(
        folder, work, lambda *_: SED, eval_datasets=sets, patchwright=str(folder / "step.toml"), **keys
    )
    assert good["held-out"]["rewards"] == [1.0, 1.0] and good["held-out"]["truncated"] == [True, True]
    assert [one.reward for one in good["held-out"]["samples"]] == [{"score": 1.0, "resolved": 1.0}] * 2
    assert lost == {}


def test_a_reward_function_of_ones_own_is_asked(folder: Path):
    async def work(args: Any, router: Router):
        (group,) = load_function(args.data_source_path)(args).get_samples(1)
        (made,) = await generate_and_rm(args, group[0])
        single = await slime.reward(args, made)
        return made, single

    path = "patchwright.integrations.slime.reward"
    made, single = run(folder, work, even_fix, custom_rm_path=path)
    assert made.reward == single == -1.0


def test_mistakes_are_said_in_a_sentence(folder: Path):
    async def work(args: Any, router: Router):
        with pytest.raises(ConfigError, match=r"names the task 'nobody' of sample 5"):
            await slime.generate(args, Sample(index=5, label="nobody"), sampling_params(args))
        with pytest.raises(ConfigError, match=r"min_p"):
            await slime.generate(args, Sample(index=5, label="twin"), {**sampling_params(args), "min_p": 0.1})
        args.reward_key = "scor"
        with pytest.raises(ConfigError, match=r"did you mean 'score'"):
            await slime.generate(args, Sample(index=5, label="twin"), sampling_params(args))

    run(folder, work, lambda *_: SUBMIT)


@pytest.mark.parametrize(
    "flag",
    [
        {"partial_rollout": True},
        {"group_rm": True},
        {"rollout_top_p": 0.9},
        {"rollout_top_k": 20},
        {"use_rollout_routing_replay": True},
        {"log_passrate": True},
        {"use_dynamic_batch_size": False},
        {"rollout_function_path": "slime.rollout.fully_async_rollout.generate_rollout_fully_async"},
        {"rollout_max_context_len": None},
        {"prompt_data": None},
    ],
    ids=lambda flag: next(iter(flag)),
)
def test_flags_that_would_go_wrong_later_are_refused_at_once(folder: Path, flag: dict[str, Any]):
    known = {"prompt_data": str(folder / "tasks.jsonl")}
    with pytest.raises(ConfigError, match="--"):
        slime.TaskSource(make_args(**{**known, **flag}))


def test_tasks_that_are_evaluated_on_are_not_trained_on(folder: Path):
    sets = [SimpleNamespace(path=str(folder / "tasks.jsonl"))]
    with pytest.raises(ConfigError, match="double"):
        slime.TaskSource(make_args(prompt_data=str(folder / "tasks.jsonl"), eval_datasets=sets))
    sets[0].custom_generate_function_path = "somebody.generate"
    slime.TaskSource(make_args(prompt_data=str(folder / "tasks.jsonl"), eval_datasets=sets))


def test_slime_is_not_imported_with_the_plug_in():
    code = (
        "import sys, patchwright.integrations.slime\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('slime', 'torch', 'ray', 'sglang')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
