"""`patchwright grade`: verdicts on somebody's predictions, in the shape official harnesses give them.

    RUN/
      summary.json           official counts and id lists, endings by name, void endings with their reasons
      grades.db              verdicts and logs: what a second run does not do again
      ID/report.json         official report of the instance, unless it is void
      ID/test_output.txt     what the tests wrote
      ID/patch.diff          the patch as it was applied
      ID/eval.sh             the test command as it was run
      ID/grade.json          ours: how it ended, why, integrity findings, seconds

With several predictions for an instance its folder holds one numbered folder each.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from patchwright.errors import GradeError, InfraError, StoreError
from patchwright.grade.cache import GradeCache, Grading
from patchwright.grade.predictions import Prediction, matched, read_predictions
from patchwright.grade.report import log_text, official_report, report_text
from patchwright.grade.rules import Verdict, judge
from patchwright.grade.run import script
from patchwright.grade.tests import Grader
from patchwright.recipes.artefacts import safe_name
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.recipes.grade_summary import Ending, summary
from patchwright.recipes.images import refuse_missing
from patchwright.recipes.progress import Stage, View
from patchwright.store import files
from patchwright.tasks.files import load_tasks
from patchwright.tasks.trust import trust_counts
from patchwright.types import GradeState, Task

__all__ = ["GradeRequest", "run_grade"]

_UNRUN = (GradeState.APPLY_FAILED, GradeState.EMPTY_PATCH)


@dataclass(frozen=True, kw_only=True, slots=True)
class GradeRequest:
    """What is to be graded, and where the reports go.

    Example: `GradeRequest(tasks=Path("tasks.jsonl"), predictions="gold")`
    """

    tasks: Path
    predictions: str
    """A file, `gold` or `empty`."""
    run: Path = Path("runs/grade")
    workers: int = 2
    """Boxes at once."""
    skip_unknown: bool = False
    """Leave out predictions for tasks that the file does not have."""


@dataclass(frozen=True, slots=True)
class _Job:
    task: Task
    prediction: Prediction
    folder: Path


async def run_grade(request: GradeRequest, sandbox: SandboxConfig, view: View) -> dict[str, Any]:
    """Grade every prediction, write the run's folder, and return what `summary.json` holds.

    Verdicts that the folder holds already are not reached again; void endings are tried again. Raises
    ConfigError for what the user gave, StoreError when the disk refuses.
    """
    started = time.monotonic()
    tasks = {task.id: task for task in load_tasks(request.tasks)}
    given = read_predictions(request.predictions, list(tasks.values()))
    for task in tasks.values():
        judge(task, "")  # rules and parsers that do not exist are found now, not after an hour
    jobs = _placed(matched(given, tasks, skip=request.skip_unknown), tasks, request.run)
    graded = {job.task.id: job.task for job in jobs}.values()
    refuse_missing(graded, sandbox)
    with _folder(request.run) as cache:
        async with open_boxes(sandbox) as backend:
            grader = Grader(backend, cache=cache, skip_empty=True)
            with view.stage("grade", total=len(jobs)) as stage:
                endings = await _all(jobs, grader, request.workers, stage)
        found = summary(endings, list(tasks), seconds=time.monotonic() - started, trust=trust_counts(graded))
        with files.attributed("write the summary", request.run):
            files.write_text(request.run / "summary.json", json.dumps(found, indent=2) + "\n")
    return found


@contextmanager
def _folder(run: Path) -> Iterator[GradeCache]:
    """The run's folder, ours alone, and the cache in it."""
    with files.attributed("open the run", run):
        run.mkdir(parents=True, exist_ok=True)
        lock = files.lock(run / "lock")
    try:
        cache = GradeCache(run / "grades.db")
        try:
            yield cache
        finally:
            cache.close()
    finally:
        os.close(lock)


def _placed(predictions: Sequence[Prediction], tasks: dict[str, Task], run: Path) -> list[_Job]:
    """Every prediction with its folder: the instance's own, or a numbered one in it."""
    count = Counter(prediction.instance_id for prediction in predictions)
    seen: Counter[str] = Counter()
    jobs = []
    for prediction in predictions:
        name = prediction.instance_id
        folder = run / safe_name(name)
        jobs.append(_Job(tasks[name], prediction, folder / str(seen[name]) if count[name] > 1 else folder))
        seen[name] += 1
    return jobs


async def _all(jobs: Sequence[_Job], grader: Grader, workers: int, stage: Stage) -> list[Ending]:
    slots = asyncio.Semaphore(workers)
    count: Counter[str] = Counter()

    async def one(job: _Job) -> Ending:
        async with slots:
            ending = await _end(job, grader)
        count["resolved" if ending.state is GradeState.RESOLVED else "void" if ending.void else "other"] += 1
        stage.note(f"{count['resolved']} resolved, {count['void']} void")
        stage.advance()
        return ending

    try:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(one(job)) for job in jobs]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None  # one ended them all: one sentence for the user
    return [job.result() for job in running]


async def _end(job: _Job, grader: Grader) -> Ending:
    """Grade one prediction and write its folder."""
    name = job.task.id
    try:
        done = await grader.grading(job.task, job.prediction.patch or "")
    except StoreError:
        raise  # the folder, not the task: nothing can be kept from here on
    except InfraError as error:
        state = GradeState(error.state) if isinstance(error, GradeError) else GradeState.ENV_BROKEN
        ending = Ending(name, state, reason=str(error), void=True)
        await asyncio.to_thread(_write, job, None, None, asdict(ending))
        return ending
    grade = done.grade
    verdict = None
    if done.log or grade.state not in _UNRUN:
        late = grade.state is GradeState.TESTS_TIMEOUT
        verdict = replace(judge(job.task, done.log, timed_out=late), state=grade.state)
    ending = Ending(
        name,
        grade.state,
        reason=grade.reason,
        findings=grade.findings,
        fault=verdict.fault if verdict else "",
        environment=verdict is not None and verdict.environment,
    )
    more = {"tests": dict(grade.tests), "seconds": grade.seconds, "command_seconds": done.command_seconds}
    await asyncio.to_thread(_write, job, done, verdict, asdict(ending) | more)
    return ending


def _write(job: _Job, done: Grading | None, verdict: Verdict | None, ours: dict[str, Any]) -> None:
    """The files of one prediction, those of an earlier ending removed."""
    patch = done.patch if done is not None else job.prediction.patch or ""
    texts = {
        "grade.json": json.dumps(ours, indent=2) + "\n",
        "patch.diff": patch.encode("utf-8", "replace").decode(),
        "eval.sh": script(job.task).rstrip("\n") + "\n",
    }
    if done is not None:
        given = job.prediction.patch or None
        texts["report.json"] = report_text(official_report(job.task, given, verdict))
    if done is not None and verdict is not None:
        late = job.task.limits.test_seconds if done.grade.state is GradeState.TESTS_TIMEOUT else None
        texts["test_output.txt"] = log_text(done.log, late)
    with files.attributed("write a report", job.folder):
        job.folder.mkdir(parents=True, exist_ok=True)
        for name in ("report.json", "test_output.txt"):
            if name not in texts:
                (job.folder / name).unlink(missing_ok=True)
        for name, text in texts.items():
            _put(job.folder / name, text)


def _put(file: Path, text: str) -> None:
    """Write a file unless it says so already: going on with a long run writes little."""
    try:
        if file.read_bytes() == text.encode():
            return
    except FileNotFoundError:
        pass
    if file.is_dir():
        shutil.rmtree(file)
    files.write_text(file, text)
