"""Tasks as files that other programs read: the seeds' JSONL, rows of SWE-bench, lists of ids and images."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from patchwright.config import nearest
from patchwright.errors import ConfigError
from patchwright.images.names import Name
from patchwright.store.files import attributed, write_text
from patchwright.tasks.sources import build, row_of, to_seed
from patchwright.tasks.specs import eval_script, spec_for
from patchwright.types import Task

__all__ = ["FORMATS", "export"]


def export(tasks: Iterable[Task], form: str, out: Path) -> Path:
    """Write tasks in a form; a folder gets a file of the form's usual name. Returns the file.

    Raises ConfigError for an unknown form, or a task that cannot be written in it; StoreError when the disk
    refuses.
    """
    if form not in FORMATS:
        close = nearest(form, list(FORMATS))
        hint = f"did you mean {close!r}?" if close else f"there are {', '.join(FORMATS)}"
        raise ConfigError(f"no format {form!r}; {hint}")
    name, lines = FORMATS[form]
    file = out / name if out.is_dir() or not out.suffix else out
    text = "".join(f"{line}\n" for line in lines(tasks))
    with attributed("write", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    return file


def _seed(tasks: Iterable[Task]) -> Iterable[str]:
    return (_json(to_seed(task, build)) for task in tasks)


def _rows(tasks: Iterable[Task]) -> Iterable[str]:
    return (_json(row_of(task)) for task in tasks)


def _ids(tasks: Iterable[Task]) -> Iterable[str]:
    return (task.id for task in tasks)


def _images(tasks: Iterable[Task]) -> Iterable[str]:
    """Full names, each once; a task of this machine's own system or of a folder has none."""
    names = dict.fromkeys(task.image for task in tasks)
    return (str(Name.parse(name)) for name in names if name != "host" and not name.startswith("/"))


def _verified(tasks: Iterable[Task]) -> Iterable[str]:
    """The seeds' form with what their evaluation reads from a row: image and script, said outright."""
    for task in tasks:
        row = row_of(task)
        own = {"image_name": task.image, "eval_script": _script(task, row)}
        instance = {**row, **{key: value for key, value in own.items() if not row.get(key)}}
        source = str(task.meta.get("source", "patchwright"))
        yield _json({"text": task.prompt, "metadata": {"instance": instance, "data_source": source}})


def _script(task: Task, row: Mapping[str, Any]) -> str:
    if not task.tests.patch:
        return task.tests.command
    try:
        return eval_script(spec_for(row), row)
    except ConfigError as error:
        raise ConfigError(f"task {task.id} cannot be written with its script: {error}") from None


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


FORMATS: Mapping[str, tuple[str, Callable[[Iterable[Task]], Iterable[str]]]] = {
    "seed": ("train.jsonl", _seed),
    "swebench": ("rows.jsonl", _rows),
    "ids": ("instance_ids.txt", _ids),
    "images": ("docker_images.txt", _images),
    "verified": ("verified_eval.jsonl", _verified),
}
"""Form -> its usual file name, and its lines."""
