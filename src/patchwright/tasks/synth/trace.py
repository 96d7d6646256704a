"""A pytest plugin that runs inside a box: which functions of the repository each test enters.

As `probe`, its text is run by the box's interpreter. It looks at calls only, and keeps the first of each
function in a test, so that a suite takes about twice its time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

import pytest

TOUCHED = "/tmp/patchwright-touched.jsonl"
_HERE = os.getcwd() + os.sep  # noqa: PTH109 - pathlib must not be loaded by us before the tests


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: Any) -> Any:
    """Follow one test, its set-up and tear-down included."""
    seen: set[Any] = set()

    def look(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            seen.add(frame.f_code)

    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        _note(item.nodeid, seen)


def _note(test: str, seen: set[Any]) -> None:
    places = []
    for code in seen:
        path = os.path.abspath(code.co_filename)  # noqa: PTH100
        if path.startswith(_HERE):
            places.append((path[len(_HERE) :], code.co_firstlineno))
    with open(TOUCHED, "a", encoding="utf-8") as file:  # noqa: PTH123
        file.write(json.dumps({"test": test, "touched": sorted(places)}) + "\n")
