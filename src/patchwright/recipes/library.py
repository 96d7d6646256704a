"""Tasks from a real library (`pypi:NAME==VERSION`): its own functions broken, its own tests the judge."""

from __future__ import annotations

from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.recipes.progress import View
from patchwright.sandbox.base import SandboxBackend
from patchwright.tasks.pypi import from_pypi
from patchwright.types import Task

PREFIX = "pypi:"


async def library_tasks(
    source: str, count: int, backend: SandboxBackend, folder: Path, view: View, *, seed: int = 0
) -> list[Task]:
    """Up to `count` tasks; the library's source is kept under `folder`, which the tasks refer to.

    Raises ConfigError when `source` is not `pypi:NAME==VERSION`, or the library has no usable tests.
    """
    if not source.startswith(PREFIX) or "==" not in source:
        raise ConfigError(f"unknown task source {source!r}; give `composed` or `pypi:NAME==VERSION`")
    with view.stage("library", total=count) as stage:
        tasks = await from_pypi(source.removeprefix(PREFIX), count, seed=seed, backend=backend, folder=folder)
        stage.advance(len(tasks))
    return tasks
