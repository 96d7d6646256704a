"""`patchwright grade`: verdicts on somebody's predictions (`{"instance_id": ..., "model_patch": ...}` lines,
as SWE-bench has them)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from patchwright.config import nearest
from patchwright.errors import ConfigError, InfraError
from patchwright.grade.tests import Grader
from patchwright.recipes.assembly import LineConfig, open_boxes
from patchwright.recipes.progress import View
from patchwright.tasks.files import load_tasks
from patchwright.types import Task


async def run_grade(
    config: LineConfig, tasks: Path, predictions: Path, report: Path, view: View
) -> dict[str, int]:
    """Grade every prediction, write one JSON line each to `report`, and count the outcomes."""
    patches = read_predictions(predictions, {task.id: task for task in load_tasks(tasks)})
    counts = {"resolved": 0, "unresolved": 0, "void": 0}
    async with open_boxes(config.sandbox) as backend:
        grader, slots = Grader(backend), asyncio.Semaphore(config.concurrency)

        async def one(task: Task, patch: str) -> dict[str, Any]:
            async with slots:
                return await _verdict(grader, task, patch)

        with view.stage("grade", total=len(patches)) as progress:
            lines = []
            for job in asyncio.as_completed([one(task, patch) for task, patch in patches]):
                line = await job
                counts[line["outcome"]] += 1
                lines.append(line)
                progress.advance()
    lines.sort(key=lambda line: line["instance_id"])
    report.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return counts


async def _verdict(grader: Grader, task: Task, patch: str) -> dict[str, Any]:
    try:
        grade = await grader(task, patch)
    except InfraError as error:
        return {"instance_id": task.id, "outcome": "void", "reason": str(error)}
    outcome = "resolved" if grade.resolved else "unresolved"
    return {"instance_id": task.id, "outcome": outcome, **asdict(grade)}


def read_predictions(file: Path, tasks: Mapping[str, Task]) -> list[tuple[Task, str]]:
    """Predictions with their tasks. Raises ConfigError naming the line that is wrong and the mend."""
    if not file.is_file():
        raise ConfigError(f"there is no predictions file {file}")
    found = []
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if line.strip():
            found.append(_prediction(f"{file} line {number}", line, tasks))
    return found


def _prediction(where: str, line: str, tasks: Mapping[str, Task]) -> tuple[Task, str]:
    try:
        row = json.loads(line)
        name, patch = row["instance_id"], row["model_patch"] or ""
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'{where}: expected {{"instance_id": "...", "model_patch": "..."}} ({error!r})'
        ) from error
    if name not in tasks:
        close = nearest(name, list(tasks))
        hint = f"; did you mean {close!r}?" if close else ""
        raise ConfigError(f"{where}: the tasks file has no task {name!r}" + hint)
    return tasks[name], patch
