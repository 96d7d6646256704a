"""Task files: JSON lines, one `Task` a line, fields as in `patchwright.types`.

The file is the user's: whatever is wrong with it is a ConfigError that names file, line and field.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from patchwright.config import nearest
from patchwright.errors import ConfigError
from patchwright.store.files import attributed, write_text
from patchwright.types import Limits, Task, Tests

_TABLES: dict[str, type] = {"": Task, "tests": Tests, "limits": Limits}


def load_tasks(path: str | Path) -> list[Task]:
    """The tasks of a file, in order; a relative `archive` is resolved against the file's folder.

    Raises ConfigError: no such file, no tasks in it, or the first bad line (`tasks.jsonl line 3: field
    `prompt` is missing`).
    """
    file = Path(path)
    tasks: list[Task] = []
    lines: dict[str, int] = {}
    for number, line in _lines(file):
        task = task_from(line, f"{file} line {number}")
        first = lines.setdefault(task.id, number)
        if first != number:
            raise ConfigError(
                f"{file} line {number}: id `{task.id}` is already used by line {first}; rename one"
            )
        tasks.append(located(task, file.parent))
    if not tasks:
        raise ConfigError(f"{file} holds no tasks; write one JSON object a line")
    return tasks


def dump_tasks(path: str | Path, tasks: Iterable[Task]) -> None:
    """Write a task file, absent or complete; an `archive` below the file's folder becomes relative to it.

    Fields at their default are left out. Raises ConfigError on a repeated id, StoreError when the disk
    refuses.
    """
    file, listed = Path(path), list(tasks)
    _refuse_repeated(file, [task.id for task in listed])
    text = "".join(f"{task_text(_portable(task, file.parent))}\n" for task in listed)
    with attributed("write tasks", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)


# --- reading ----------------------------------------------------------------------------------


@cache
def _adapter() -> TypeAdapter[Task]:
    return TypeAdapter(Task)


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no task file {file}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}; check the path and its mode") from None
    return ((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip())


def task_from(line: str, where: str) -> Task:
    """The task of one line of a task file. Raises ConfigError that says `where` and what is wrong."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON ({error}); write one task as one JSON object a line") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a task is a JSON object, this is {type(data).__name__}")
    _refuse_unknown(data, where)
    try:
        return _adapter().validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_sentence(error)}") from None


def _refuse_unknown(data: dict[str, Any], where: str) -> None:
    for table, cls in _TABLES.items():
        inner = data if not table else data.get(table)
        known = [field.name for field in dataclasses.fields(cls)]
        for name in inner if isinstance(inner, dict) else ():
            if name not in known:
                full = f"{table}.{name}" if table else name
                raise ConfigError(f"{where}: unknown field `{full}`; {_hint(name, known)}")


def _hint(name: str, known: Sequence[str]) -> str:
    close = nearest(name, known)
    return f"did you mean `{close}`?" if close else f"there are {', '.join(known)}"


def _sentence(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    detail = details[0]
    field = ".".join(str(part) for part in detail["loc"])
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    if detail["type"].startswith("missing"):
        return f"field `{field}` is missing{more}"
    wish = detail["msg"].removeprefix("Input should be ")
    given = json.dumps(detail["input"], default=str, ensure_ascii=False)
    return f"field `{field}` is {given[:60]}; it should be {wish}{more}" if field else f"{wish}{more}"


def located(task: Task, folder: Path) -> Task:
    """The task with a relative `archive` resolved against the folder of its file."""
    if task.archive is None or Path(task.archive).is_absolute():
        return task
    return dataclasses.replace(task, archive=str(folder / task.archive))


# --- writing ----------------------------------------------------------------------------------


def task_text(task: Task) -> str:
    """A task as one line of a task file; `task_from` gives it back."""
    return _adapter().dump_json(task, exclude_defaults=True).decode()


def _portable(task: Task, folder: Path) -> Task:
    if task.archive is None:
        return task
    archive, base = Path(task.archive).absolute(), folder.absolute()
    if not archive.is_relative_to(base):
        return dataclasses.replace(task, archive=str(archive))
    return dataclasses.replace(task, archive=archive.relative_to(base).as_posix())


def _refuse_repeated(file: Path, ids: Sequence[str]) -> None:
    seen: set[str] = set()
    for task_id in ids:
        if task_id in seen:
            raise ConfigError(f"{file}: id `{task_id}` is used twice; every task needs its own")
        seen.add(task_id)
