"""Patchwright in slime (THUDM/slime 0.3.1): agents in boxes and tests as rewards, in slime's training loop.

slime finds these by their dotted names (`docs/slime.md` has the flags) and calls them in the process that
makes its rollouts. Nothing of slime is imported before it calls; its objects are taken by their attributes.

    --data-source-path                patchwright.integrations.slime.TaskSource
    --custom-generate-function-path   patchwright.integrations.slime.generate
    --custom-reward-post-process-path patchwright.integrations.slime.post_process
    --dynamic-sampling-filter-path    patchwright.integrations.slime.keep_group
    --rollout-function-path           patchwright.integrations.slime.rollout
    --custom-eval-rollout-log-function-path patchwright.integrations.slime.log_eval
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from patchwright.integrations.slime_args import Args, settings
from patchwright.integrations.slime_groups import normalised, reward_of, uninformative, void_reward
from patchwright.integrations.slime_line import close_host, host_of
from patchwright.integrations.slime_rows import SlimeSample, aborted, fill, is_void
from patchwright.integrations.slime_source import TaskSource
from patchwright.train.advantage import STEP
from patchwright.types import Outcome

__all__ = [
    "TaskSource",
    "close_host",
    "generate",
    "keep_group",
    "log_eval",
    "post_process",
    "reward",
    "rollout",
]

_log = logging.getLogger("patchwright.slime")


async def generate(
    args: Args, sample: SlimeSample, sampling_params: dict[str, Any], evaluation: bool = False
) -> list[SlimeSample]:
    """One attempt at the task `sample.label` names: an agent in a box, its diff graded in a fresh one.

    Always a list, of one sample at least, all with one `rollout_id`; in an evaluation exactly one. Their
    reward is set unless `--custom-rm-path` names somebody who sets it. An attempt that the machinery failed,
    again and again, or that slime broke off, is one sample with status ABORTED and a mask of 0.

    Raises ConfigError for wrong flags and unknown tasks, InfraError when every attempt is void.
    """
    host = await host_of(args)
    made = await host.attempt(args, sample, sampling_params, evaluation)
    if made is None:
        return _void(args, sample, "slime broke the round off")
    trajectory, engine = made
    if trajectory.outcome is Outcome.VOID:
        failure = trajectory.failure
        return _void(args, sample, f"{failure.stage}: {failure.message}" if failure else "no verdict")
    step_wise = settings(args).rl.algorithm.algorithm().advantage == STEP
    samples = fill(sample, trajectory, host.renderer.decode, step_wise=step_wise, one=evaluation)
    samples[0].prefix_cache_info.cached_tokens += engine.cached_tokens
    samples[0].prefix_cache_info.total_prompt_tokens += engine.prompt_tokens
    if not (sample.custom_rm_path or getattr(args, "custom_rm_path", None)):
        for one in samples:
            one.reward = reward_of(args, one)
    return samples


def _void(args: Args, sample: SlimeSample, reason: str) -> list[SlimeSample]:
    _log.warning("the attempt of sample %s at %s is void: %s", sample.index, sample.label, reason)
    (one,) = aborted(sample, reason)
    one.reward = void_reward(args)
    return [one]


async def reward(args: Args, sample: SlimeSample | Sequence[SlimeSample], **kwargs: Any) -> Any:
    """`--custom-rm-path`: the reward of a sample, or of each of a list, from its attempt's verdict.

    `generate` sets the same by itself; this is for a reward function of one's own to build on."""
    if isinstance(sample, Sequence):
        return [reward_of(args, one) for one in sample]
    return reward_of(args, sample)


def post_process(args: Args, samples: list[SlimeSample]) -> tuple[list[float], list[float]]:
    """`--custom-reward-post-process-path`: raw rewards, and what slime takes for advantages: relative to the
    group, each attempt counted once, void ones not at all; by `rl.algorithm.advantage = "step"` each turn's
    own."""
    return normalised(args, samples)


def keep_group(args: Args, samples: Sequence[Any], **kwargs: Any) -> Any:
    """`--dynamic-sampling-filter-path`: keeps groups whose attempts differ in reward. slime's own filters
    fail on groups of lists."""
    flat = [one for item in samples for one in (item if isinstance(item, Sequence) else [item])]
    reason = uninformative(args, flat)
    output: Any = importlib.import_module("slime.rollout.filter_hub.base_types").DynamicFilterOutput
    return output(keep=not reason, reason=reason or None)


def rollout(args: Args, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """`--rollout-function-path`: slime's own rollout, after the data source was told that a round begins, so
    that a run of `train_async.py` resumes without leaving out a round's tasks."""
    if isinstance(data_source, TaskSource) and not evaluation:
        data_source.begin(rollout_id)
    inner: Any = importlib.import_module("slime.rollout.sglang_rollout").generate_rollout
    return inner(args, rollout_id, data_source, evaluation=evaluation)


def log_eval(
    rollout_id: int,
    args: Args,
    data: dict[str, dict[str, Any]],
    extra_metrics: Mapping[str, Any] | None,
) -> bool:
    """`--custom-eval-rollout-log-function-path`: leaves void attempts out of what slime then logs itself
    (False says so); a data set of nothing else is not logged."""
    for name, found in list(data.items()):
        kept = [at for at, sample in enumerate(found["samples"]) if not is_void(sample)]
        lost = len(found["samples"]) - len(kept)
        if lost:
            _log.warning("evaluation %s: %d of %d attempts were void", name, lost, len(found["samples"]))
        if not kept:
            del data[name]
            continue
        for values in ("rewards", "truncated", "samples"):
            found[values] = [found[values][at] for at in kept]
    return False
