"""Many bugs tried at once, in an order that depends on the seed and the outcomes only."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, replace
from random import Random
from typing import Any

from pydantic import TypeAdapter

from patchwright.tasks.mutation import Change
from patchwright.tasks.synth.bench import Bench
from patchwright.tasks.synth.bugs import Bug, combined, single_bugs
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synth.journal import Journal
from patchwright.tasks.synth.survey import Survey, Target, survey
from patchwright.tasks.synth.trial import Trial, Trials
from patchwright.types import Task

_TASK = TypeAdapter(Task)
_CHANGE = TypeAdapter(Change)

_SINGLES_PER_COMBINATION = 3
_AHEAD = 8
"""Bugs begun before the first of them has its outcome, or two per worker: one that runs into its time must
not make the others wait. What is tried depends on it, so few workers do not change it."""


async def surveyed(bench: Bench, config: LibraryConfig, journal: Journal) -> Survey:
    """The survey, or the one an earlier call made. Raises ConfigError as `survey` does."""
    known = journal.get("survey")
    if known is None:
        found = await survey(bench, config.repeat)
        journal.put("survey", asdict(found))
        known = journal.get("survey")
    targets = tuple(Target(t["file"], t["function"], tuple(t["tests"])) for t in known["targets"])
    return Survey(known["seconds"], targets, tuple(known["remarks"]))


async def tried(trials: Trials, journal: Journal) -> AsyncIterator[Trial]:
    """The outcome of every bug, one after another, until there are no more; what the journal knows is not
    tried again. Raises SandboxError or EngineError: what was tried is kept."""
    order = _Order(trials)
    slots = asyncio.Semaphore(trials.config.workers)
    running: deque[asyncio.Task[Trial]] = deque()
    ahead = max(_AHEAD, 2 * trials.config.workers)

    async def one(bug: Bug) -> Trial:
        known = journal.get(bug.key)
        if known is not None:
            return _taken_up(bug, known)
        async with slots:
            trial = await trials.run(bug)
        journal.put(bug.key, _kept(trial))
        return trial

    try:
        while True:
            while len(running) < ahead and (bug := order.next()) is not None:
                running.append(asyncio.create_task(one(bug)))
            if not running:
                return
            trial = await running[0]
            running.popleft()
            order.note(trial)
            yield trial
    finally:
        for job in running:
            job.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Order:
    """Which bug is next: single ones in turn, and after every few that were caught, a combination."""

    def __init__(self, trials: Trials) -> None:
        config = trials.config
        library, targets = trials.bench.library, trials.survey.targets
        self._combines = "combine" in config.strategies
        self._singles: Iterator[Bug] = single_bugs(library, targets, config.strategies, config.seed)
        self._rng = Random(f"{config.seed}/combine")
        self._caught: list[Bug] = []
        self._due = 0
        self._seen: set[str] = set()

    def note(self, trial: Trial) -> None:
        if trial.task is not None and len(trial.bug.targets) == 1:
            self._caught.append(trial.bug)
            self._due += len(self._caught) % _SINGLES_PER_COMBINATION == 0

    def next(self) -> Bug | None:
        if self._combines and self._due:
            self._due -= 1
            bug = combined(self._caught, self._rng)
            if bug is not None and bug.key not in self._seen:
                self._seen.add(bug.key)
                return bug
        return next(self._singles, None)


def _kept(trial: Trial) -> dict[str, Any]:
    """As JSON. A rewrite's change is the model's word, so it is kept; others follow from the bug."""
    task = _TASK.dump_python(trial.task, mode="json") if trial.task else None
    changes = [asdict(change) for change in trial.bug.changes] if trial.bug.strategy == "rewrite" else []
    return {"task": task, "reason": trial.reason, "changes": changes}


def _taken_up(bug: Bug, known: dict[str, Any]) -> Trial:
    if known["changes"]:
        changes = tuple(_CHANGE.validate_python(change) for change in known["changes"])
        bug = replace(bug, changes=changes)
    task = _TASK.validate_python(known["task"]) if known["task"] else None
    return Trial(bug, task, known["reason"])
