"""Test sections of files that hold other things too: `setup.cfg`, `tox.ini`, `pyproject.toml`.

A fix may change a package's metadata; how its tests run is not the fix's business. What counts is read out of
the box before and after the patch went in.
"""

from __future__ import annotations

import configparser
import tomllib
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from patchwright.errors import SandboxError
from patchwright.grade.diff import Diff
from patchwright.sandbox.base import Sandbox
from patchwright.types import Task

__all__ = ["Settings", "changed_settings", "read_settings", "test_settings"]

_FILES = ("setup.cfg", "tox.ini", "pyproject.toml", "package.json")

Settings = Mapping[str, bytes | None]
"""Path -> content, None for a file that is not there."""


async def read_settings(box: Sandbox, task: Task, diff: Diff) -> Settings:
    """Those of the files that the patch touches, as they are in the box. Raises SandboxError."""
    paths = sorted(path for path in diff.paths if PurePosixPath(path).name in _FILES)
    return {path: await _content(box, f"{task.workdir}/{path}") for path in paths}


async def changed_settings(box: Sandbox, task: Task, before: Settings) -> tuple[str, ...]:
    """The files whose test sections are not what they were before the patch; by the `strict` rules they are
    put back. Raises SandboxError."""
    found = []
    for path, old in before.items():
        new = await _content(box, f"{task.workdir}/{path}")
        if test_settings(path, old, task) == test_settings(path, new, task):
            continue
        found.append(f"settings: {path}")
        if task.tests.rules == "strict":
            await box.write(f"{task.workdir}/{path}", old or b"")
    return tuple(found)


async def _content(box: Sandbox, path: str) -> bytes | None:
    try:
        return await box.read(path)
    except SandboxError:
        raise
    except OSError:
        return None


def test_settings(path: str, content: bytes | None, task: Task) -> Any:
    """What of a file says how tests run; the whole text of one that cannot be read."""
    text = (content or b"").decode("utf-8", "replace")
    try:
        if path.endswith(".toml"):
            return _toml(text, "tox" in task.tests.command)
        if path.endswith(".json"):
            return None if _SCRIPTS.isdisjoint(task.tests.command.split()) else text
        return _ini(text, "tox" in task.tests.command)
    except (ValueError, configparser.Error, RecursionError):
        return text


_SCRIPTS = {"npm", "npx", "yarn", "pnpm", "jest"}


def _toml(text: str, tox: bool) -> Any:
    tools = tomllib.loads(text).get("tool", {})
    named = tools.items() if isinstance(tools, dict) else ()
    return {name: table for name, table in named if name.startswith("pytest") or (tox and name == "tox")}


def _ini(text: str, tox: bool) -> Any:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    parser.read_string(text)
    return {
        name: dict(parser.items(name))
        for name in parser.sections()
        if name in ("pytest", "tool:pytest") or (tox and name.startswith(("tox", "testenv")))
    }


test_settings.__test__ = False  # type: ignore[attr-defined]  # no test of pytest's
