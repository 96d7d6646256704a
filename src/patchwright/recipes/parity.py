"""Engine and trainer must compute the same: the checks a run of reinforcement learning makes as it goes.

    after every weight update   a probe the engine samples, scored by the trainer      (`check_parity`)
    before every update         what was sampled with the very weights to be updated   (`check_drift`)

Tokens of older weights differ from the trainer's by what was learned since, which says nothing about either
of the two: they are in the policy ratio, never in a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from math import fsum

from patchwright.engine.base import Engine
from patchwright.engine.http import HttpEngine
from patchwright.engine.replicas import Replicas
from patchwright.errors import ConfigError, EngineError
from patchwright.recipes.assembly import SamplingConfig
from patchwright.train.samples import samples
from patchwright.train.worker import TrainerProcess
from patchwright.types import Completion, Outcome, Sample, Sampling, Trajectory, Turn

__all__ = ["check_drift", "check_parity", "probe_prompt", "refuse_truncation", "refuse_unlike", "stale"]

_PROBE = (3, 4, 5, 6, 7, 8)
"""Before anything was sampled any ids do."""
_PROBE_TOKENS = 24
_ROWS = 16
"""Attempts that are scored once more where stale tokens hide the others' drift: one forward pass each."""


def refuse_truncation(engine: Engine, sampling: SamplingConfig) -> None:
    """Raises ConfigError when the engine draws from a part of the distribution and tells the log-probs of the
    whole: no ratio to the trained policy would be true."""
    whole = engine.engines if isinstance(engine, Replicas) else [engine]
    raw = [one for one in whole if isinstance(one, HttpEngine) and not one.processed]
    if sampling.top_p < 1 and raw:
        raise ConfigError(
            f"`line.sampling.top_p` is {sampling.top_p}, and {raw[0].name} tells log-probs from before top-p,"
            " on which nothing true can be trained; set it to 1, or use `local` or `vllm`"
        )


def refuse_unlike(sampling: SamplingConfig, trained: float) -> None:
    """Raises ConfigError when the temperature of sampling is none, or not the trainer's `trained`."""
    if sampling.temperature <= 0:
        raise ConfigError(
            "`line.sampling.temperature` is 0: a greedy policy tries nothing; set it above 0, as 1 is"
        )
    if sampling.temperature != trained:
        raise ConfigError(
            f"attempts are sampled at `line.sampling.temperature` {sampling.temperature:g} and trained at "
            f"`rl.train.temperature` {trained:g}; give both the same"
        )


async def check_parity(
    engine: Engine,
    trainer: TrainerProcess,
    bound: float,
    *,
    temperature: float = 1.0,
    prompt: Sequence[int] = _PROBE,
) -> float:
    """The largest gap between engine and trainer on what the engine, every replica of it, samples after
    `prompt`.

    Raises EngineError past `bound`: the engine then samples from other weights than those trained, or
    computes them wrongly, and nothing learned from it would be true.
    """
    sampling = Sampling(max_tokens=_PROBE_TOKENS, seed=0, temperature=temperature)
    gaps = [0.0]
    for done in await _probes(engine, prompt, sampling):
        scores = await trainer.score([*prompt, *done.token_ids])
        own = scores[len(scores) - len(done.token_ids) :]
        gaps += [abs(a - b) for a, b in zip(done.logprobs, own, strict=True)]
    gap = max(gaps)
    if not all(one <= bound for one in gaps):  # what is no number is in no bound
        raise EngineError(
            f"engine and trainer disagree by {gap:.3f} on a log-prob under weights {engine.version}, more "
            f"than rl.max_logprob_gap ({bound:g}); reload the engine, or raise the bound if it computes in "
            "low precision"
        )
    return gap


async def _probes(engine: Engine, prompt: Sequence[int], sampling: Sampling) -> list[Completion]:
    """What each replica samples; one that is just being lost answers later for itself."""
    if not isinstance(engine, Replicas):
        return [await engine.generate(prompt, sampling)]
    asked = [one.generate(prompt, sampling) for one in engine.engines]
    found = await asyncio.gather(*asked, return_exceptions=True)
    for fault in found:
        if isinstance(fault, BaseException) and not isinstance(fault, EngineError):
            raise fault
    answers = [one for one in found if isinstance(one, Completion)]
    return answers or [await engine.generate(prompt, sampling)]


def probe_prompt(rollouts: Sequence[Trajectory], most: int) -> Sequence[int]:
    """What an attempt of the round began with, if that is at most `most` tokens long: what engines and
    trainers disagree on may depend on what is asked."""
    prompts = (t.turns[0].prompt_ids for t in rollouts if t.outcome is not Outcome.VOID and t.turns)
    return next((ids for ids in prompts if 0 < len(ids) <= most - _PROBE_TOKENS), _PROBE)


# --- drift ------------------------------------------------------------------------------------


def stale(trajectory: Trajectory, version: int) -> bool:
    """Whether older weights than `version` sampled some of it."""
    return any(_oldest(turn) < version for turn in trajectory.turns)


def _oldest(turn: Turn) -> int:
    return min(turn.versions, default=turn.version)


async def check_drift(
    trainer: TrainerProcess, rollouts: Sequence[Trajectory], version: int, bound: float
) -> float | None:
    """Mean |trainer - engine| over tokens that weights `version`, the trainer's, sampled, of up to 16
    attempts of a round that has older ones too; None where there are none.

    Raises EngineError past `bound`.
    """
    gaps: list[float] = []
    for row in islice(_fresh(rollouts, version), _ROWS):
        scores = await trainer.score(row.token_ids)
        told = zip(scores, row.logprobs[1:], row.advantages[1:], strict=True)
        gaps += [abs(score - old) for score, old, fresh in told if fresh]
    if not gaps:
        return None
    mean = fsum(gaps) / len(gaps)
    if not mean <= bound:
        raise EngineError(
            f"engine and trainer disagree by {mean:.3f} nats a token (at most {max(gaps):.2f}) on what "
            f"weights {version} sampled, more than rl.max_drift ({bound:g}): nothing was trained on it; make "
            "the sampling settings and the precisions of both alike, or raise the bound"
        )
    return mean


def _fresh(rollouts: Sequence[Trajectory], version: int) -> Iterator[Sample]:
    """Rows with tokens that `version` sampled, which have advantage 1 in them and all others 0."""
    for trajectory in rollouts:
        own = {turn.id: 1.0 for turn in trajectory.turns if _oldest(turn) == version}
        if own and trajectory.outcome is not Outcome.VOID:
            yield from (row for row in samples(trajectory, advantage=own) if any(row.advantages))
