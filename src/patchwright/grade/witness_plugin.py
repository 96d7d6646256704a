"""A pytest plugin that runs inside a box and says, in a file, what became of every test.

The box's interpreter runs this file (`witness.py` brings it there): the standard library and pytest only, no
import of Patchwright, for old interpreters too. Every line carries a seal made with a key that is read and
changed before any code of the repository is imported. Every grading pays for what is slow here.
"""

import builtins
import hashlib
import json
import os
import sys
import unittest.case
from types import BuiltinFunctionType, FunctionType
from typing import Any

import pytest

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib is not for us to load
_WATCHED = (
    *("_pytest." + name for name in ("assertion.rewrite", "outcomes", "python", "python_api", "raises")),
    *("_pytest." + name for name in ("reports", "runner", "skipping", "unittest")),
    *("pluggy._callers", "pluggy._hooks", "unittest.case"),
)
_CLASSES = (
    *("AbstractRaises", "ApproxBase", "ApproxScalar", "AssertionRewriter", "BaseReport", "CallInfo"),
    *("Function", "HookCaller", "RaisesContext", "RaisesExc", "TestCase", "TestCaseFunction"),
    *("TestReport", "_AssertRaisesBaseContext", "_AssertRaisesContext", "_Outcome"),
)
"""Those of their classes that decide: to look at an object costs a page of memory of the fork server's."""
_CALLED = (FunctionType, classmethod, staticmethod)
_FIXED = (*_CALLED, BuiltinFunctionType, property, type)
"""What nobody rebinds in an honest run, other than variables."""
_MARK = b"# key "
_lstat = os.lstat


class _Record:
    """The results, and what the key's file held."""

    def __init__(self) -> None:
        """Take the key out of the first line of our own file, and leave the next one in its place. Raises
        ValueError without one."""
        with open(__file__, "r+b") as file:  # noqa: PTH123
            line = file.readline()
            if not line.startswith(_MARK):
                raise ValueError("there is no key")
            self._key, watched = line[len(_MARK) :].split(b" ", 1)
            file.seek(len(_MARK))
            file.write(hashlib.blake2b(self._key, digest_size=32).hexdigest().encode())
        self.watched = json.loads(watched.decode())
        """Paths of files that nobody may write to."""
        self._out = os.open(_FOLDER + "/results", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._mine, self._count = os.getpid(), 0

    def write(self, kind: str, **values: Any) -> None:
        """A sealed line; none in a process that was forked off."""
        if os.getpid() != self._mine:
            return
        line = json.dumps([self._count, kind, values]).encode()
        self._count += 1
        seal = hashlib.blake2b(line, key=self._key).hexdigest()
        os.write(self._out, line + b" " + seal.encode() + b"\n")


def _spaces() -> Any:
    """Name and namespace of all that the runner stands on: modules, and their classes."""
    yield "builtins", vars(builtins)
    for name in _WATCHED:
        space = vars(sys.modules[name]) if name in sys.modules else {}
        yield name, space
        for value in list(space.values()):
            if isinstance(value, type) and value.__name__ in _CLASSES and value.__module__ == name:
                yield name + "." + value.__name__, vars(value)


def _code(value: Any) -> Any:
    return getattr(getattr(value, "__func__", value), "__code__", None)


def _copies() -> Any:
    """What is in the namespaces now: objects, and the code of functions."""
    copies = {}
    for name, space in _spaces():
        held = space.copy()  # of the class's own dictionary at once, which `dict(space)` goes through by name
        copies[name] = held, [(key, _code(item)) for key, item in held.items() if type(item) in _CALLED]
    return copies


def _changed(before: Any) -> Any:
    """What is not what it was, and the file that the new object comes from."""
    now, changed = dict(_spaces()), []
    for name, (held, codes) in before.items():
        space = now.get(name, {})
        new = [key for key, old in held.items() if space.get(key) is not old and isinstance(old, _FIXED)]
        new += [key for key, code in codes if _code(space.get(key)) is not code and key not in new]
        changed += [[name + "." + key, _home(space.get(key))] for key in new]
    return changed


def _home(value: Any) -> str:
    made = _code(value)
    if made:
        return str(made.co_filename)
    return str(getattr(sys.modules.get(getattr(value, "__module__", None) or ""), "__file__", "?"))


def _stamps(paths: Any) -> Any:
    """Inode and ctime of every file that is there: no program can set those."""
    stamps = {}
    for path in paths:
        try:
            found = _lstat(path)
        except OSError:
            continue
        stamps[path] = found.st_ino, found.st_ctime_ns
    return stamps


class _Witness:
    """Writes down what is reported; its hooks come first."""

    def __init__(self, config: Any, record: Any) -> None:
        self._config, self._record = config, record
        self._before, self._stamps = _copies(), _stamps(record.watched)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """One phase of one test; none that says nothing."""
        if report.passed and report.when != "call":
            return
        self._record.write(
            "test",
            id=self._config.cwd_relative_nodeid(report.nodeid),
            when=report.when,
            outcome=report.outcome,
            xfail=hasattr(report, "wasxfail"),
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: Any) -> None:
        """What could not be collected."""
        if report.failed:
            self._record.write("test", id=report.nodeid, when="collect", outcome="failed", xfail=False)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: Any) -> None:
        """The end: who meddled, and whether a failure would still be called one."""
        now = _stamps(self._stamps)
        self._record.write(
            "end",
            changed=_changed(self._before),
            plugins=[_file(plugin) for plugin in session.config.pluginmanager.get_plugins()],
            blind=_blind(session),
            tampered=[path for path, stamp in self._stamps.items() if now.get(path) != stamp],
        )


def _file(plugin: Any) -> str:
    home = sys.modules.get(type(plugin).__module__)
    return str(getattr(plugin, "__file__", None) or getattr(home, "__file__", "?"))


def _blind(session: Any) -> Any:
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

        call: Any = CallInfo.from_call(_fails, when="call")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        if report.passed and not hasattr(report, "wasxfail"):
            blind.append("report")
    return blind


def _raises() -> None:
    with pytest.raises(ZeroDivisionError):
        pass


def _fails() -> None:
    pytest.fail("canary", pytrace=False)


def _assert_equal() -> None:
    unittest.case.TestCase("__init__").assertEqual(1, 2)


def _assert_true() -> None:
    unittest.case.TestCase("__init__").assertTrue(False)


_CANARIES = {
    "pytest.raises": _raises,
    "pytest.fail": _fails,
    "assertEqual": _assert_equal,
    "assertTrue": _assert_true,
}


def _disappear() -> None:
    """Leave the environment as it would be without us; programs the tests start know nothing of us."""
    sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
    path = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part != _FOLDER]
    options = os.environ.get("PYTEST_ADDOPTS", "").replace("-p " + __name__, "").strip()
    for name, value in (("PYTHONPATH", os.pathsep.join(path)), ("PYTEST_ADDOPTS", options)):
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value


def _opened() -> Any:
    """Where to write, None where nothing is to be written: in xdist's workers, and without a key."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        return None
    try:
        record = _Record()
    except (OSError, ValueError):
        return None
    _disappear()
    record.write("start")
    return record


_record = _opened()


def pytest_load_initial_conftests(early_config: Any) -> None:
    """Before any file of the repository is loaded."""
    global _record
    if _record is not None:
        early_config.pluginmanager.register(_Witness(early_config, _record), "patchwright-witness")
        _record = None
