"""Scores given while attempts are made, for rewards beside the outcome: a judge's or a trained model's for
each turn (process reward), a verifier's for the whole attempt.

A score that could not be given changes nothing: the trajectory stays as it is, and whoever makes rewards of
it takes the mean of the group's others (`policy.py`), so that a judge that is down is never a low reward.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from patchwright.config import Config
from patchwright.gateway.session import Session
from patchwright.recipes.judge import Judge, Watch
from patchwright.recipes.judge_config import JudgeConfig
from patchwright.recipes.policy import turn_scores
from patchwright.recipes.verifier_model import (
    ScoringConfig,
    Verifier,
    open_verifier,
    verifier_score,
    with_turn_scores,
)
from patchwright.rollout.rollout import Attempts, Job, Line
from patchwright.types import Outcome, Trajectory, Turn

__all__ = ["Scores", "ScoresConfig", "open_scores"]


class ScoresConfig(Config):
    """Who scores attempts while they are made; `rl.algorithm` says what the scores are worth."""

    judge: JudgeConfig = JudgeConfig()
    """A judge of turns behind an endpoint; none while `base_url` is empty."""
    verifiers: tuple[str, ...] = ()
    """Folders of trained verifiers: of whole attempts, or of turns (process reward)."""
    scoring: ScoringConfig = ScoringConfig()
    """How they compute."""


@dataclass(frozen=True, kw_only=True)
class _WatchedLine(Line):
    """A line whose conversations a judge watches."""

    judge: Judge
    watches: dict[str, Watch] = field(default_factory=dict)

    def converse(self, job: Job, on_turn: Callable[[Turn], None] | None = None) -> Session:
        """As `Line` does; each turn that is recorded begins the judging of those before it."""
        if job.id in self.watches:
            self.watches.pop(job.id).cancel()  # made anew: the attempt before was void
        watch = Watch(self.judge, job.task.prompt)
        session = super().converse(job, lambda _: watch.saw(session.turns, session.messages))
        if isinstance(session, Session):
            self.watches[job.id] = watch
        return session


class Scores:
    """The scorers of one run; made by `open_scores`."""

    def __init__(self, judge: Judge | None, verifiers: list[Verifier]) -> None:
        self.judge, self._verifiers = judge, verifiers
        self._watches: dict[str, Watch] = {}

    def over(self, line: Attempts) -> Attempts:
        """The line as it is to be rolled out on: watched where there is a judge. Attempts that others make
        are judged when they are whole."""
        if self.judge is None or not isinstance(line, Line):
            return line
        names = ("backend", "agent", "model", "grade", "keep", "events")
        parts = {name: getattr(line, name) for name in names}
        return _WatchedLine(**parts, judge=self.judge, watches=self._watches)

    async def check(self) -> None:
        """Raises ConfigError or EngineError when the judge takes no question: better now than in every
        step of the run."""
        if self.judge is not None:
            await self.judge.check()

    def record(self, rollouts: Sequence[Trajectory]) -> dict[str, float | int | None]:
        """A round's scores for the run's metrics: means over the attempts that were scored, the share of
        graded ones that were, and all votes of the judge so far by what became of them."""
        graded = [t for t in rollouts if t.outcome is not Outcome.VOID]
        turns = [fmean(scores.values()) for t in graded if (scores := turn_scores(t))]
        whole = [score for t in graded if (score := verifier_score(t)) is not None]
        found: dict[str, float | int | None] = {}
        if self.judge is not None or turns:
            found |= {"turn_score": fmean(turns) if turns else None}
            found |= {"turn_scored": len(turns) / max(1, len(graded))}
        if self._verifiers:
            found |= {"verifier_score": fmean(whole) if whole else None}
        votes = self.judge.votes if self.judge else {}
        return found | {f"votes_{name}": count for name, count in sorted(votes.items())}

    def lacking(self, trajectory: Trajectory) -> bool:
        """Whether an attempt that was graded was never brought to its scores: the run was stopped between."""
        if trajectory.grade is None:
            return False
        judged = self.judge is None or not trajectory.turns or bool(trajectory.grade.turn_scores)
        return not judged or any(not verifier.has(trajectory) for verifier in self._verifiers)

    async def finish(self, trajectory: Trajectory, issue: str = "") -> Trajectory:
        """The attempt with its scores; the very same object where there are none to give. `issue` is what it
        was asked, for an attempt whose conversation nobody watched.

        Raises EngineError when a verifier's process died.
        """
        watch = self._watches.pop(trajectory.id, None)
        if trajectory.outcome is Outcome.VOID:
            if watch is not None:
                watch.cancel()
            return trajectory
        for verifier in self._verifiers:
            trajectory = (await verifier.score([trajectory]))[0]
        if watch is None and self.judge is not None and trajectory.turns:
            watch = Watch(self.judge, issue)
        given = await watch.scores(trajectory) if watch is not None else {}
        return with_turn_scores(trajectory, given) if given else trajectory


@asynccontextmanager
async def open_scores(config: ScoresConfig) -> AsyncIterator[Scores]:
    """Open the scorers that are configured. Raises ConfigError when a folder is no verifier."""
    async with AsyncExitStack() as stack:
        judge = Judge(config.judge) if config.judge.base_url else None
        if judge is not None:
            await stack.enter_async_context(aclosing(judge))
        verifiers = [
            await stack.enter_async_context(open_verifier(Path(folder), config.scoring))
            for folder in config.verifiers
        ]
        yield Scores(judge, verifiers)
