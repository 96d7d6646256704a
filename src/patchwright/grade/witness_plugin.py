"""A pytest plugin that runs inside a box and says, in a file, what became of every test.

The box's interpreter runs the text of this file (`witness.py` writes it there): the standard library and
pytest only, no import of Patchwright, for old interpreters too. Every line carries a seal made with a key
that is read and changed before any code of the repository is imported.
"""

from __future__ import annotations

import builtins
import hashlib
import hmac
import json
import os
import sys
import unittest.case
from typing import Any

import pytest

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not for us to load
_WATCHED = [
    *(
        "_pytest." + name
        for name in ("assertion.rewrite", "assertion.util", "outcomes", "python", "python_api")
    ),
    *("_pytest." + name for name in ("raises", "reports", "runner", "skipping", "terminal", "unittest")),
    *("unittest." + name for name in ("case", "result", "suite")),
    *("pluggy." + name for name in ("_callers", "_hooks", "_manager")),
]


def _sealer() -> Any:
    """Take the key, leave the next one in its place, and return what writes sealed lines."""
    path = os.path.join(_FOLDER, "key")  # noqa: PTH118
    with open(path, "r+b") as file:  # noqa: PTH123
        key = file.read()
        file.seek(0)
        file.truncate()
        file.write(hashlib.sha256(key).digest())
    seal = hmac.new(key, b"", hashlib.sha256)
    out = os.open(os.path.join(_FOLDER, "results"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # noqa: PTH118
    mine, count = os.getpid(), [0]

    def write(kind: str, **values: Any) -> None:
        if os.getpid() != mine:
            return
        line = json.dumps([count[0], kind, values]).encode()
        count[0] += 1
        one = seal.copy()
        one.update(line)
        os.write(out, line + b" " + one.hexdigest().encode() + b"\n")

    return write


def _entries() -> dict[str, Any]:
    """Name -> object for all that the runner stands on."""
    found = {"builtins." + name: value for name, value in vars(builtins).items() if name != "_"}
    for name in _WATCHED:
        for key, value in list(vars(sys.modules.get(name, os.path)).items()):
            if getattr(value, "__module__", None) != name:
                continue
            found[name + "." + key] = value
            if isinstance(value, type):
                found.update((name + "." + key + "." + part, item) for part, item in vars(value).items())
    return found


def _code(value: Any) -> Any:
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _changed(before: dict[str, Any]) -> list[list[str]]:
    """What is not what it was, and the file that the new object comes from."""
    now, changed = _entries(), []
    for name, (value, code) in before.items():
        new = now.get(name)
        if new is not value or _code(new) is not code:
            home = sys.modules.get(getattr(new, "__module__", None) or "")
            made = _code(new)
            changed.append([name, made.co_filename if made else str(getattr(home, "__file__", "?"))])
    return changed


class _Witness:
    """Writes down what is reported; its hooks come first."""

    def __init__(self, config: Any, write: Any) -> None:
        self.config, self.write = config, write
        self.before = {name: (value, _code(value)) for name, value in _entries().items()}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test."""
        self.write(
            "test",
            id=self.config.cwd_relative_nodeid(report.nodeid),
            when=report.when,
            outcome=report.outcome,
            xfail=hasattr(report, "wasxfail"),
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: Any) -> None:
        """What could not be collected."""
        if report.failed:
            self.write("test", id=report.nodeid, when="collect", outcome="failed", xfail=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: Any) -> None:
        """The end: who meddled, and whether a failure would still be called one."""
        plugins = [
            str(
                getattr(plugin, "__file__", None)
                or getattr(sys.modules.get(type(plugin).__module__), "__file__", "?")
            )
            for plugin in session.config.pluginmanager.get_plugins()
        ]
        self.write("end", changed=_changed(self.before), plugins=plugins, blind=_blind(session))


def _blind(session: Any) -> list[str]:
    """Checks that no longer fail when they must."""
    blind = []
    for name, check in _CANARIES.items():
        try:
            check()
        except BaseException:
            continue
        blind.append(name)
    for item in getattr(session, "items", [])[:1]:
        from _pytest.runner import CallInfo

        call = CallInfo.from_call(_CANARIES["assertEqual"], when="call")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if report.passed and not hasattr(report, "wasxfail"):
            blind.append("report")
    return blind


def _raises() -> None:
    with pytest.raises(ZeroDivisionError):
        pass


_CANARIES = {
    "pytest.raises": _raises,
    "pytest.fail": lambda: pytest.fail("canary"),
    "assertEqual": lambda: unittest.case.TestCase("__init__").assertEqual(1, 2),
    "assertTrue": lambda: unittest.case.TestCase("__init__").assertTrue(False),
}


def _disappear() -> None:
    """Leave the environment as it would be without us; programs the tests start know nothing of us."""
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != _FOLDER]
    options = os.environ.get("PYTEST_ADDOPTS", "").replace("-p " + __name__, "").strip()
    for name, value in (("PYTHONPATH", os.pathsep.join(path)), ("PYTEST_ADDOPTS", options)):
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value


def _opened() -> Any:
    """What writes, None where nothing is to be written: in xdist's workers, and without a key."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return None
    try:
        write = _sealer()
    except OSError:
        return None
    _disappear()
    write("start")
    return write


_write = _opened()


def pytest_load_initial_conftests(early_config: Any) -> None:
    """Before any file of the repository is loaded."""
    global _write
    if _write is not None:
        early_config.pluginmanager.register(_Witness(early_config, _write), "patchwright-witness")
        _write = None
