"""A pytest plugin that runs inside a box: one JSON line per phase of a test, written as it happens.

The box's interpreter runs the text of this file (`bench` writes it there): the standard library and pytest
only, no import of Patchwright. What it writes is read as the word of a stranger.
"""

from __future__ import annotations

import json
import os
import resource
from typing import Any

import pytest

REPORT = "/tmp/patchwright-report.jsonl"
WANTED = "/tmp/patchwright-wanted.json"
"""A list of node ids: only these run. Absent: all."""
CPU = "PATCHWRIGHT_CPU_SECONDS"
"""Variable: processor seconds until pytest is ended. A bug that loops for ever is told by them, whatever else
the machine does meanwhile. Absent: no bound."""
_MOST_FRAMES = 30
_MOST_TEXT = 2000

if CPU in os.environ:
    _seconds = int(os.environ[CPU])
    resource.setrlimit(resource.RLIMIT_CPU, (_seconds, _seconds + 1))


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Keep the wanted tests."""
    if not os.path.exists(WANTED):  # noqa: PTH110 - pathlib must not be loaded by us before the tests
        return
    with open(WANTED, encoding="utf-8") as file:  # noqa: PTH123
        wanted = set(json.load(file))
    dropped = [item for item in items if item.nodeid not in wanted]
    items[:] = [item for item in items if item.nodeid in wanted]
    config.hook.pytest_deselected(items=dropped)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    """Note how a phase of a test ended."""
    outcome = yield
    report = outcome.get_result()
    line = {
        "test": item.nodeid,
        "when": report.when,
        "outcome": report.outcome,
        "seconds": round(report.duration, 4),
    }
    if call.excinfo is not None and report.outcome == "failed":
        line.update(_failure(call.excinfo))
    _note(line)


def pytest_collectreport(report: Any) -> None:
    """Note what could not be collected."""
    if report.failed:
        _note({"collect": report.nodeid, "message": str(report.longrepr)[-_MOST_TEXT:]})


def _failure(excinfo: Any) -> dict[str, Any]:
    frames = [(str(entry.path), entry.lineno + 1) for entry in excinfo.traceback]
    return {
        "error": excinfo.typename,
        "message": excinfo.exconly(tryshort=True)[:_MOST_TEXT],
        "frames": [*frames[:_MOST_FRAMES], *frames[_MOST_FRAMES:][-_MOST_FRAMES:]],
    }


def _note(line: dict[str, Any]) -> None:
    with open(REPORT, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps(line) + "\n")
