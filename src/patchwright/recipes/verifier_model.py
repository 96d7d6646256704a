"""A trained verifier at work: trajectories in, the same with scores out.

`attempt` verifiers leave P(resolved) in `Grade.scores`, `turn` verifiers (trained process reward) a score
per turn in `Grade.turn_scores`, so that both live in the run, go by trajectory and turn, and are made once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from pydantic import Field

from patchwright.config import Config
from patchwright.recipes.verifier_prompt import About, Prompter, answers, read_about
from patchwright.render import Renderer
from patchwright.train.scoring import ScorerConfig, ScorerProcess
from patchwright.types import Trajectory

__all__ = ["ScoringConfig", "Verifier", "open_verifier", "verifier_score", "with_turn_scores"]

_PREFIX = "verifier:"


class ScoringConfig(Config):
    """How a verifier computes; changes speed, not results."""

    device: str = "cpu"
    """`cpu`, `cuda`, `cuda:1`."""
    dtype: str = Field(default="float32", pattern="^(float32|bfloat16)$")
    """Arithmetic of the forward pass."""
    threads: int = Field(default=1, ge=1)
    """CPU threads."""
    batch_tokens: int = Field(default=8000, ge=1)
    """Tokens computed at once, padding included."""


class Verifier:
    """An opened verifier; made by `open_verifier`."""

    def __init__(self, name: str, about: About, prompter: Prompter, scorer: ScorerProcess) -> None:
        self.name = name
        """The key of its scores: `verifier:` and a fingerprint of its weights."""
        self.about = about
        self._prompter, self._scorer = prompter, scorer

    def has(self, trajectory: Trajectory) -> bool:
        """Whether there is nothing to score: void, or scored by these weights before."""
        return trajectory.grade is None or self.name in trajectory.grade.scores

    async def score(self, trajectories: Sequence[Trajectory]) -> list[Trajectory]:
        """The same trajectories with their scores; void ones as they are. Raises EngineError when the
        verifier's process died."""
        places, prompts = [], []
        for index, trajectory in enumerate(trajectories):
            for turn, ids in self._prompter.prompts(trajectory).items() if trajectory.grade else ():
                places.append((index, turn))
                prompts.append(ids)
        found: list[dict[int | None, float]] = [{} for _ in trajectories]
        for (index, turn), score in zip(places, await self._scorer.score(prompts), strict=True):
            found[index][turn] = score
        return [self._scored(t, scores) for t, scores in zip(trajectories, found, strict=True)]

    def _scored(self, trajectory: Trajectory, scores: Mapping[int | None, float]) -> Trajectory:
        if trajectory.grade is None:
            return trajectory
        by_turn = {turn: 2 * score - 1 for turn, score in scores.items() if turn is not None}
        whole = scores.get(None, sum(scores.values()) / len(scores) if scores else 0.5)
        graded = replace(trajectory.grade, scores={**trajectory.grade.scores, self.name: whole})
        scored = replace(trajectory, grade=graded)
        return with_turn_scores(scored, by_turn) if self.about.prompt.unit == "turn" else scored


def with_turn_scores(trajectory: Trajectory, scores: Mapping[int, float | None]) -> Trajectory:
    """The trajectory with a score for each of its turns, None where there is none; void ones as they are."""
    if trajectory.grade is None:
        return trajectory
    row = tuple(scores.get(turn.id) for turn in trajectory.turns)
    return replace(trajectory, grade=replace(trajectory.grade, turn_scores=row))


def verifier_score(trajectory: Trajectory) -> float | None:
    """The score a verifier gave last, in [0, 1]; None when none did."""
    scores = trajectory.grade.scores if trajectory.grade else {}
    return next((scores[name] for name in reversed(list(scores)) if name.startswith(_PREFIX)), None)


@asynccontextmanager
async def open_verifier(folder: Path, config: ScoringConfig) -> AsyncIterator[Verifier]:
    """Load a verifier in a process of its own. Raises ConfigError when the folder is none."""
    about, renderer = read_about(folder), Renderer.load(str(folder))
    yes, no = answers(renderer)
    async with ScorerProcess(folder, ScorerConfig(yes=yes, no=no, **config.model_dump())) as scorer:
        yield Verifier(_PREFIX + fingerprint(folder), about, Prompter(renderer, about.prompt), scorer)


def fingerprint(folder: Path) -> str:
    """A short name of what a verifier is: its weights and the settings of its prompts."""
    digest = hashlib.blake2b(digest_size=6)
    digest.update(json.dumps(read_about(folder).prompt.model_dump()).encode())
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as content:
            while block := content.read(2**20):
                digest.update(block)
    return digest.hexdigest()
