"""Our own parsers, for tasks that follow no official harness: whole names, failure wins over a pass."""

from __future__ import annotations

import re

from patchwright.types import TestStatus

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")

# The short summary of `pytest -rA`: "PASSED t.py::a", "FAILED t.py::a - assert ...".
_PYTEST = re.compile(
    r"^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) (?:\[\d+\] )?(\S.*?)(?: - .*)?$", re.MULTILINE
)
_PYTEST_STATUS = {
    "PASSED": TestStatus.PASSED,
    "XFAIL": TestStatus.PASSED,
    "XPASS": TestStatus.PASSED,
    "FAILED": TestStatus.FAILED,
    "ERROR": TestStatus.ERROR,
    "SKIPPED": TestStatus.SKIPPED,
}

# `python -m unittest -v`: "test_a (pkg.Case.test_a) ... ok"
_UNITTEST = re.compile(
    r"^(\w+) \((\S+?)\)(?:\n.*?)? \.\.\. (ok|FAIL|ERROR|skipped\b.*|expected failure)$", re.MULTILINE
)
_UNITTEST_STATUS = {
    "ok": TestStatus.PASSED,
    "expected failure": TestStatus.PASSED,
    "FAIL": TestStatus.FAILED,
    "ERROR": TestStatus.ERROR,
}


def parse_pytest(log: str) -> dict[str, TestStatus]:
    """Statuses from the short summary of `pytest -rA` (or any `-r` that names passed tests).

    A test that both passed and errored (a failing teardown) counts as errored.
    """
    statuses: dict[str, TestStatus] = {}
    for word, name in _PYTEST.findall(_ANSI.sub("", log)):
        if statuses.get(name) not in (TestStatus.FAILED, TestStatus.ERROR):
            statuses[name] = _PYTEST_STATUS[word]
    return statuses


def parse_unittest(log: str) -> dict[str, TestStatus]:
    """Statuses from `python -m unittest -v`; names are `module.Class.test`."""
    statuses = {}
    for name, where, word in _UNITTEST.findall(_ANSI.sub("", log)):
        full = where if where.endswith(f".{name}") else f"{where}.{name}"
        statuses[full] = _UNITTEST_STATUS.get(word, TestStatus.SKIPPED)
    return statuses
