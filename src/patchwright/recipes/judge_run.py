"""`patchwright judge`: votes on the steps of attempts that are stored already."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

from patchwright.recipes.judge import Judge, Watch
from patchwright.recipes.judge_config import JudgeConfig
from patchwright.recipes.progress import View
from patchwright.recipes.stages import stages_like
from patchwright.recipes.verifier_model import with_turn_scores
from patchwright.store import Entry, Run
from patchwright.types import Trajectory

__all__ = ["Judged", "run_judge"]

_AT_ONCE = 16
"""Attempts in memory; the judge itself bounds the votes."""


@dataclass(slots=True)
class Judged:
    """What was judged."""

    attempts: int = 0
    steps: int = 0
    unscored: int = 0
    """Steps without one valid vote."""
    votes: Mapping[str, int] = field(default_factory=Counter)
    """Votes that were valid, invalid, failed."""


async def run_judge(config: JudgeConfig, folder: Path, stage: str, view: View) -> Judged:
    """Judge the attempts with a verdict, recorded turns and no scores yet, and store them with their scores.

    Attempts none of whose steps got a score are left as they are: the next call tries them again. Raises
    ConfigError when no endpoint is named, it does not answer, or the folder is no run.
    """
    judge, found = Judge(config), Judged()
    with Run.open(folder) as run:
        stored = run.config
    async with aclosing(judge):
        await judge.check()
        with Run.create_or_open(folder, stored) as run:
            wanted = stages_like(stage, (entry.stage for entry in run.entries()), f"run {folder}")
            entries = [entry for entry in run.entries() if entry.stage in wanted]
            with view.stage("judge", total=len(entries)) as progress:
                for start in range(0, len(entries), _AT_ONCE):
                    page = entries[start : start + _AT_ONCE]
                    await _judge_page(judge, run, page, found)
                    progress.advance(len(page))
            for place in sorted({(entry.stage, entry.step) for entry in entries}):
                run.seal(*place)
    found.votes = judge.votes
    return found


async def _judge_page(judge: Judge, run: Run, entries: Sequence[Entry], found: Judged) -> None:
    read = {entry.id: run.trajectory(entry.id) for entry in entries}
    todo = [entry for entry in entries if _open(read[entry.id])]
    scores = await asyncio.gather(*(Watch(judge).scores(read[entry.id]) for entry in todo))
    for entry, given in zip(todo, scores, strict=True):
        missing = sum(score is None for score in given.values())
        found.attempts += 1
        found.steps += len(given)
        found.unscored += missing
        if missing < len(given):
            judged = with_turn_scores(read[entry.id], given)
            run.put(judged, stage=entry.stage, step=entry.step, version=entry.version)


def _open(trajectory: Trajectory) -> bool:
    judged = trajectory.grade is not None and any(s is not None for s in trajectory.grade.turn_scores)
    return (
        bool(trajectory.turns) and trajectory.grade is not None and trajectory.failure is None and not judged
    )
