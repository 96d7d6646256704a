"""Tasks from a real library: its own functions broken, its own tests the judge."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.grade.tests import Grader
from patchwright.recipes.progress import View
from patchwright.sandbox.base import SandboxBackend
from patchwright.tasks.library import read_library
from patchwright.tasks.synth.bench import open_bench
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synth.journal import Journal
from patchwright.tasks.synth.make import surveyed, tried
from patchwright.tasks.synth.source import Source, fetch_source
from patchwright.tasks.synth.trial import Trials
from patchwright.tasks.synth.writer import Writer
from patchwright.tasks.validate import Grading
from patchwright.types import Endpoint, Grade, Task

JOURNAL = "synth.journal"
_MAY_CHANGE = {"count", "workers", "model_url", "model", "api_key_env"}


async def library_tasks(
    source: str, config: LibraryConfig, backend: SandboxBackend, folder: Path, view: View
) -> list[Task]:
    """Up to `config.count` tasks. The library's source (`archive/`) and the journal of what was tried are
    kept in `folder`: the same call goes on where an earlier one stopped.

    Raises ConfigError when the library cannot be had or used, or no bug is caught by its tests.
    """
    _refuse(config)
    fetched = await asyncio.to_thread(fetch_source, source, folder / "archive")
    bench = await open_bench(read_library(fetched.root), fetched.name, backend)
    mend = f"choose another folder, or remove {folder / JOURNAL}"
    async with _writer(config) as writer:
        with Journal(folder / JOURNAL, _header(fetched, config), mend) as journal:
            found = await surveyed(bench, config, journal)
            for remark in found.remarks:
                view.say(f"{fetched.name}: {remark}")
            trials = Trials(bench, found, config, anew(backend), writer)
            tasks = await _made(trials, journal, view)
    if not tasks:
        raise ConfigError(f"no bug in {fetched.name} is caught by its own tests; take another library")
    return tasks


def _refuse(config: LibraryConfig) -> None:
    if "rewrite" in config.strategies and not config.model_url:
        raise ConfigError("the strategy `rewrite` needs a model; give --model-url URL")
    if not set(config.strategies) - {"combine"}:
        raise ConfigError("`combine` combines the bugs of others; add the strategy `mutate` or `remove`")


def _header(source: Source, config: LibraryConfig) -> dict[str, object]:
    """What decides which tasks are made."""
    return {"library": source.name, **config.model_dump(mode="json", exclude=_MAY_CHANGE)}


def anew(backend: SandboxBackend) -> Grading:
    """A grader that runs the tests every time: one that remembers would call any test steady."""

    async def grade(task: Task, patch: str) -> Grade:
        return await Grader(backend)(task, patch)

    return grade


@asynccontextmanager
async def _writer(config: LibraryConfig) -> AsyncIterator[Writer | None]:
    if not config.model_url:
        yield None
        return
    key = os.environ.get(config.api_key_env, "")
    writer = Writer(Endpoint(base_url=config.model_url, api_key=key, model=config.model))
    try:
        yield writer
    finally:
        await writer.close()


async def _made(trials: Trials, journal: Journal, view: View) -> list[Task]:
    """The tasks of the first bugs that are caught."""
    count, tasks, reasons = trials.config.count, dict[str, Task](), Counter[str]()
    started = time.monotonic()
    with view.stage("bugs", total=count) as stage:
        async for trial in tried(trials, journal):
            reasons[trial.reason] += 1
            if trial.task is not None and trial.task.id not in tasks:
                tasks[trial.task.id] = trial.task
                stage.advance()
            hours = (time.monotonic() - started) / 3600
            stage.note(f"{len(tasks) / hours:.0f} tasks/h, {reasons.total()} bugs tried")
            if len(tasks) == count:
                break
    for reason, number in reasons.most_common():
        view.say(f"{number} bugs: {reason or 'a task'}")
    return list(tasks.values())
