"""`patchwright tasks validate`: a file's tasks examined in boxes, the verdicts written into it."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from patchwright.errors import InfraError
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.recipes.images import refuse_missing
from patchwright.recipes.library import anew
from patchwright.recipes.progress import Stage, View
from patchwright.sandbox.base import BoxSpec, SandboxBackend
from patchwright.store.files import attributed
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.synth.journal import Journal
from patchwright.tasks.trust import BROKEN, Trust, TrustConfig, examine
from patchwright.types import Task

_TASK = TypeAdapter(Task)
_RETRY_AFTER = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a file. Example: `Report({"lib-f": Trust("valid")}, {"lib-g": "no box: disk full"})`"""

    found: dict[str, Trust]
    """Task id -> verdict."""
    unjudged: dict[str, str]
    """Task id -> the fault of this machine for which there is none."""


async def validate_file(
    file: Path,
    config: TrustConfig,
    sandbox: SandboxConfig,
    view: View,
    *,
    workers: int,
    first: int | None = None,
) -> Report:
    """Examine a file's tasks (the `first` so many) and write the verdicts into it, all at once at the end.

    Until then they are in `FILE.trust.journal`, from which the same call goes on when this one is killed.
    """
    tasks = load_tasks(file)
    chosen = tasks[:first]
    refuse_missing(chosen, sandbox)
    path = file.with_name(f"{file.name}.trust.journal")
    mend = f"remove {path} to begin anew"
    async with open_boxes(sandbox) as backend:
        with Journal(path, config.model_dump(mode="json"), mend) as journal:
            report = await _examined(chosen, backend, config, journal, view, workers)
    dump_tasks(file, [report.found[t.id].on(t) if t.id in report.found else t for t in tasks])
    if not report.unjudged:
        with attributed("remove the journal", path):
            path.unlink()
    return report


async def _examined(
    tasks: list[Task],
    backend: SandboxBackend,
    config: TrustConfig,
    journal: Journal,
    view: View,
    workers: int,
) -> Report:
    slots = asyncio.Semaphore(workers)
    report = Report({}, {})
    with view.stage("validate", total=len(tasks)) as stage:

        async def one(task: Task) -> None:
            async with slots:
                await _one(task, backend, config, journal, report)
            _note(stage, report)

        await asyncio.gather(*map(one, tasks))
    return report


async def _one(
    task: Task, backend: SandboxBackend, config: TrustConfig, journal: Journal, report: Report
) -> None:
    key = _key(task)
    known: dict[str, Any] | None = journal.get(key)
    if known is None:
        try:
            trust = await _insist(task, backend, config)
        except InfraError as error:
            report.unjudged[task.id] = str(error)
            return
        known = {"verdict": trust.verdict, "evidence": dict(trust.evidence)}
        journal.put(key, known)
    report.found[task.id] = Trust(known["verdict"], known["evidence"])


async def _insist(task: Task, backend: SandboxBackend, config: TrustConfig) -> Trust:
    """Once more when there was no box; no box again is the task's fault where any other box opens."""
    try:
        return await examine(task, anew(backend), config)
    except InfraError:
        await asyncio.sleep(_RETRY_AFTER)
    try:
        return await examine(task, anew(backend), config)
    except InfraError as error:
        plain = await backend.open(BoxSpec())
        await plain.close()
        return Trust(BROKEN, {"reason": str(error)})


def _key(task: Task) -> str:
    """Of everything that decides; a task that was changed is examined again."""
    bare = _TASK.dump_json(task, exclude={"trust", "meta", "prompt"})
    return f"{task.id}/{hashlib.sha256(bare).hexdigest()[:16]}"


def _note(stage: Stage, report: Report) -> None:
    counts = Counter(trust.verdict for trust in report.found.values())
    stage.note(", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items())))
    stage.advance()
