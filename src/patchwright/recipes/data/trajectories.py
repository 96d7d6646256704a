"""`patchwright import-trajectories`: rows of published trajectory sets into a run, like attempts made here.

Known by their columns: conversations in `messages`, `trajectory` or `conversations` (as a list or as JSON
text; roles as OpenAI or as ShareGPT writes them), the verdict in `resolved`, and rows of verifiers, whose log
is read back. SWE-Gym's SFT, sampled and verifier sets, SWE-smith's, Nebius', R2E-Gym's are of these kinds.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from patchwright.errors import ConfigError
from patchwright.recipes.data.conversation import Message, Unfit, plain
from patchwright.recipes.data.swegym import judgement
from patchwright.recipes.legible import legible
from patchwright.recipes.progress import View
from patchwright.store import Run
from patchwright.tasks.sources.read import Source, read
from patchwright.tasks.sources.rows import Row
from patchwright.types import Grade, GradeState, Trajectory

__all__ = ["conversation", "conversations", "import_trajectories", "tools_of", "trajectory_of", "verdict"]

_COLUMNS = ("messages", "trajectory", "conversations", "history")
_TASK = ("instance_id", "task_id", "id")
_PATCH = ("patch", "model_patch", "git_patch", "output_patch", "generated_patch")
_EXIT = ("exit_status", "exit", "exit_reason")
_VERDICTS = ("resolved", "target", "success")
_BATCH = 64
STAGE = "import"


def import_trajectories(source: str, run: Path, split: str, unjudged: bool | None, view: View) -> int:
    """Store every row as an attempt of a run; returns how many.

    `unjudged` is the verdict of rows that tell none. Raises ConfigError for a source without conversations,
    and for a row without a verdict when `unjudged` is None.
    """
    lost: Counter[str] = Counter()
    count, batches = 0, _batched(_attempts(source, split, unjudged, lost))
    first = next(batches, None)
    if first is None:
        why = "; ".join(lost) or "it has no rows"
        raise ConfigError(f"no row of {source} can be taken: {legible(why)}")
    with Run.create_or_open(run, {"import": source, "split": split}) as stored:
        for batch in chain([first], batches):
            stored.put_many(batch, stage=STAGE, step=0, version=0)
            count += len(batch)
        stored.seal(STAGE, 0)
    view.say(f"{run}: {count} attempts")
    for why, number in lost.most_common(5):
        view.say(f"left out: {number} rows, {legible(why)}")
    return count


def _attempts(source: str, split: str, unjudged: bool | None, lost: Counter[str]) -> Iterator[Trajectory]:
    for number, item in enumerate(read(source, split)):
        try:
            yield trajectory_of(item, number, unjudged)
        except Unfit as error:
            lost[str(error)] += 1


def _batched(attempts: Iterator[Trajectory]) -> Iterator[list[Trajectory]]:
    batch: list[Trajectory] = []
    for attempt in attempts:
        batch.append(attempt)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch


def trajectory_of(item: Source, number: int, unjudged: bool | None) -> Trajectory:
    """A row as an attempt. Raises Unfit for a row without a conversation, ConfigError without a verdict."""
    messages, resolved = conversation(item), verdict(item)
    judged = judgement(messages)
    if judged is not None:
        messages, resolved = judged
    resolved = unjudged if resolved is None else resolved
    if resolved is None:
        raise ConfigError(
            f"{item.where}: no column says whether it was resolved; give --resolved or --unresolved for all "
            "rows that do not say"
        )
    task = _first(item.row, _TASK) or f"row-{_digest(messages)}"
    return Trajectory(
        id=f"{task}-{number}",
        task_id=task,
        group=task,
        messages=tuple(messages),
        patch=_first(item.row, _PATCH) or _first(_inside(item.row, "test_result"), _PATCH),
        exit=_first(item.row, _EXIT),
        grade=Grade(
            state=GradeState.RESOLVED if resolved else GradeState.TESTS_FAILED, reason="as published"
        ),
    )


def _digest(messages: list[Message]) -> str:
    """What was asked tells tasks apart where no column does."""
    asked = next((message["content"] for message in messages if message["role"] == "user"), "")
    return hashlib.sha256(asked.encode("utf-8", "replace")).hexdigest()[:12]


def _inside(row: Mapping[str, Any], column: str) -> Mapping[str, Any]:
    found = row.get(column)
    return found if isinstance(found, Mapping) else {}


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next((str(row[name]) for name in names if row.get(name)), "")


# --- rows -------------------------------------------------------------------------------------


def conversations(source: str) -> Iterator[tuple[Source, list[Message]]]:
    """The rows of a file and their conversations. Raises ConfigError for a row without one."""
    for item in read(source):
        try:
            yield item, conversation(item)
        except Unfit as error:
            raise ConfigError(f"{item.where}: {error}") from None


def conversation(item: Source) -> list[Message]:
    """The messages of a row. Raises Unfit when there are none."""
    row = Row(item.row, item.where)
    for column in _COLUMNS:
        found = row.json(column) if row.has(column) else None
        if isinstance(found, list) and found:
            return plain(found)
    raise Unfit(f"it has no conversation in {', '.join(_COLUMNS)}")


def verdict(item: Source) -> bool | None:
    """Whether a row says that it was resolved; None when it does not say."""
    found = next((item.row[name] for name in _VERDICTS if item.row.get(name) is not None), None)
    found = _inside(item.row, "report").get("resolved") if found is None else found
    return bool(found) if isinstance(found, bool | int | float) else None


def tools_of(item: Source) -> list[Mapping[str, Any]] | None:
    """The tools a row says its conversation had."""
    row = Row(item.row, item.where)
    found = row.json("tools") if row.has("tools") else None
    return found if isinstance(found, list) and all(isinstance(tool, Mapping) for tool in found) else None
