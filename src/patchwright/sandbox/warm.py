"""pytest served warm inside a box: imported once in the fork server, forked for every call.

Standard library only. `preload` runs in the fork server before anything else is imported. In the box a
small script named `pytest` hands its process id to the runner; `Calls` forks a child that takes over
the script's arguments, folder, environment, limits and descriptors, and `take_over` turns that child
into what `pytest` would have been: the same `sys.path`, `sys.argv`, modules, streams and exit code. The
script only waits for the code. What cannot be taken over faithfully runs cold, as the real program.
One difference is kept: every call in a run hashes strings with one seed (`PYTHONHASHSEED` runs cold).
"""

# ruff: noqa: PTH113, PTH100, PTH108, PTH110, PTH118, PTH120, PTH123
# Must import next to nothing: what is imported here looks preloaded to the tests

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from patchwright.sandbox.prebuilt import prebuild, remember_statements

_REQUESTS = "/run/warm"
_COLD = "cold"
_NAMES = ("pytest", "py.test")
_HANDLED = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONUNBUFFERED")
"""Variables that Python reads when it starts and `take_over` imitates; any other one runs cold."""
_LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")
_LANG = "C.UTF-8"
"""The locale the fork server and every box start with."""
_STATELESS = (
    "pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "anyio", "xdist", "execnet",
)  # fmt: skip
"""Packages beside the standard library that keep nothing of the place they were imported in."""
_SLOW = ("hypothesis", "_hypothesis_globals", "_hypothesis_pytestplugin")
"""Kept too where the environment is plain, because its import costs more than all else together: it keeps
the folder it was imported in, which can be told, and some variables. Any other plugin is imported anew."""
_PLAIN = frozenset(
    ("PATH", "HOME", "LANG", "USER", "LOGNAME", "PWD", "OLDPWD", "SHLVL", "_", "PYTEST_ADDOPTS", *_HANDLED)
)

_SHIM = """#!/bin/sh
answer={requests}.$$
if [ -p {requests} ] && mkfifo "$answer" 2>/dev/null; then
  exec 3<&0 4>&1
  echo $$ >{requests}
  read -r code <"$answer"
  [ "$code" = {cold} ] || exit "$code"
fi
exec {program} "$@" 3<&- 4>&-
"""

_STDIO = (3, 4, 2)
"""Where the script keeps its stdin, stdout and stderr: the shell moves 0 and 1 about while it redirects, so
they may be anything at the moment they are taken."""

_LESSON = """
import pytest

@pytest.fixture
def thing():
    return {"a": [1, 2]}

@pytest.mark.parametrize("n", [1, 2])
def test_passes(n, thing, monkeypatch, capsys):
    assert thing["a"]

def test_fails(thing):
    assert thing == {"a": [1, 3], "b": "text"}

def test_raises():
    with pytest.raises(ValueError):
        int("x")
    raise RuntimeError("seen")

@pytest.mark.skip(reason="seen")
def test_skipped():
    pass
"""
"""Run once, so that what pytest imports late is imported too."""
_LESSONS = {
    "test_patchwright_lesson.py": _LESSON,
    "test_patchwright_import.py": "import patchwright_broken\n",
    "patchwright_broken.py": "def broken(\n",
}


class Warm:
    """What the fork server holds ready: modules a cold pytest would have, and how to start one."""

    def __init__(
        self, modules: frozenset[str], program: str, hand_over: Callable[[], None] | None = None
    ) -> None:
        self.hand_over = hand_over
        """Gives a fork the configuration built in advance, where there is one."""
        self.modules = modules
        """Names a cold pytest would have imported; a fork forgets every other."""
        self.program = program
        """Path of the real `pytest` script."""
        self.executable = _interpreter(program)
        """The interpreter that script names in its first line."""

    def programs(self) -> dict[str, str]:
        """Name -> text of the scripts that stand in for pytest on the box's PATH."""
        text = _SHIM.format(requests=_REQUESTS, cold=_COLD, program=self.program)
        return dict.fromkeys(_NAMES, text)


def _interpreter(program: str) -> str:
    with open(program, "rb") as script:
        first = os.fsdecode(script.readline()).strip()
    named = first.removeprefix("#!")
    return named if named != first and os.path.isfile(named) else sys.executable


def preload(names: list[str]) -> Warm | None:
    """Import `names`; with `pytest` among them and present, get ready to serve it."""
    program = os.path.join(sys.prefix, "bin", "pytest")
    for name in names:
        if name != "pytest":
            __import__(name)
    if "pytest" not in names or not os.path.exists(program):
        return None
    before = {name for name in sys.modules if name.partition(".")[0] != "patchwright"}
    remember_statements()
    _rehearse()
    kept = frozenset(name for name in sys.modules if name in before or _keeps_nothing(name))
    return Warm(kept, program, prebuild(program))


def _keeps_nothing(name: str) -> bool:
    package = name.partition(".")[0]
    return package in _STATELESS or package in sys.stdlib_module_names


def _rehearse() -> None:
    """Run small test sessions, unheard: one that passes and fails, one that cannot import. Leave only their
    imports behind, and what is remembered of pytest's own source."""
    import shutil
    import tempfile

    import pytest

    environ, path, meta_path = dict(os.environ), list(sys.path), list(sys.meta_path)
    modules = set(sys.modules)
    folder = tempfile.mkdtemp(prefix="patchwright-")
    ears = os.dup(1), os.dup(2)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        for name, text in _LESSONS.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(text)
        for name in ("lesson", "import"):
            test = os.path.join(folder, f"test_patchwright_{name}.py")
            within = (f"--rootdir={folder}", f"--confcutdir={folder}")  # not what else lies beside the folder
            pytest.main(["-q", "-rA", *within, "-c", os.devnull, test])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os.dup2(ears[0], 1)
        os.dup2(ears[1], 2)
        for fd in (*ears, null):
            os.close(fd)
        shutil.rmtree(folder, ignore_errors=True)
        os.environ.clear()
        os.environ.update(environ)
        sys.path[:], sys.meta_path[:] = path, meta_path
        for name in set(sys.modules) - modules:
            if name.startswith(("test_patchwright_", "patchwright_broken")):
                del sys.modules[name]
        sys.path_importer_cache.clear()


class Calls:
    """The runner's side: calls of the stand-in scripts, from their request to their answer."""

    def __init__(
        self, warm: Warm, watch: Callable[[int, Callable[[], None]], None], unwatch: Callable[[int], None]
    ) -> None:
        self._warm = warm
        self._watch = watch
        self._unwatch = unwatch
        self._answers: dict[int, int] = {}  # child -> descriptor of the answer
        os.mkfifo(_REQUESTS, 0o600)
        self._requests = os.open(_REQUESTS, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        watch(self._requests, self._on_requests)

    def ended(self, child: int, code: int) -> None:
        """The child `child` has ended with `code`: tell the script that waits for it."""
        answer = self._answers.pop(child, None)
        if answer is not None:
            _answer(answer, str(code))

    def _on_requests(self) -> None:
        for line in os.read(self._requests, 65536).split(b"\n"):
            if line.isdigit():
                self._on_call(int(line))

    def _on_call(self, caller: int) -> None:
        """Serve the script with process id `caller`; anything odd about it makes it run cold."""
        path = f"{_REQUESTS}.{caller}"
        try:
            answer = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return  # no such script: somebody else wrote here
        try:
            handle = os.pidfd_open(caller)
        except OSError:
            os.close(answer)
            return
        child = self._fork(caller, handle)
        if child is None:
            _answer(answer, _COLD)
        else:
            self._answers[child] = answer
        self._watch(handle, lambda: self._on_caller_gone(path, handle, answer, child))

    def _on_caller_gone(self, path: str, handle: int, answer: int, child: int | None) -> None:
        """The script has its answer, or was killed: then its pytest dies with it."""
        import signal

        try:
            os.unlink(path)
        except OSError:
            pass  # the box's own programs may have removed it
        self._unwatch(handle)
        os.close(handle)
        os.close(answer)
        if child is not None and self._answers.pop(child, None) is not None:
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _fork(self, caller: int, handle: int) -> int | None:
        """A child that becomes the caller's pytest, or None when only a cold one will do."""
        from patchwright.sandbox import syscalls

        fds: list[int] = []
        try:
            arguments, env = _read_list(caller, "cmdline"), _read_list(caller, "environ")
            variables = dict(entry.split("=", 1) for entry in env if "=" in entry)
            if not _can_imitate(variables):
                return None
            fds += [syscalls.take_fd(handle, number) for number in _STDIO]
            child = os.fork()
        except OSError:
            return None
        finally:
            if fds and os.getpid() == 1:
                for fd in fds:
                    os.close(fd)
        if child == 0:
            take_over(self._warm, caller, fds, arguments[2:], variables)
        return child


def _answer(answer: int, text: str) -> None:
    try:
        os.write(answer, text.encode() + b"\n")
    except OSError:
        pass  # the script is gone, or closed its end: there is nobody to tell


def _read_list(pid: int, name: str) -> list[str]:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return [os.fsdecode(part) for part in file.read().split(b"\0")[:-1]]


def _can_imitate(env: dict[str, str]) -> bool:
    """Whether an interpreter started with `env` would be set up as this one is."""
    if any(name.startswith("PYTHON") and name not in _HANDLED for name in env):
        return False
    return next((env[name] for name in _LOCALE if env.get(name)), "") == _LANG


def take_over(warm: Warm, caller: int, fds: list[int], arguments: list[str], env: dict[str, str]) -> None:
    """Become the pytest that process `caller` asked for. Never returns."""
    code = 1
    try:
        _take_over_process(caller, fds)
        _take_over_interpreter(warm, arguments, env)
        code = _run()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


def _take_over_process(caller: int, fds: list[int]) -> None:
    import resource
    import signal

    from patchwright.sandbox import syscalls

    os.setpgrp()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    os.closerange(3, 65536)
    syscalls.set_dumpable(True)
    syscalls.set_name("pytest")
    for kind in (getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")):
        resource.setrlimit(kind, resource.prlimit(caller, kind))
    with open(f"/proc/{caller}/status", encoding="ascii", errors="replace") as status:
        umask = next(line.split()[1] for line in status if line.startswith("Umask:"))
    os.umask(int(umask, 8))
    os.chdir(f"/proc/{caller}/cwd")


def _take_over_interpreter(warm: Warm, arguments: list[str], env: dict[str, str]) -> None:
    import builtins
    import time
    import types

    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
    _open_streams(unbuffered=bool(env.get("PYTHONUNBUFFERED")))
    named = env.get("PYTHONPATH")
    extra = [os.path.abspath(entry) for entry in named.split(":")] if named else []
    sys.path[:0] = [os.path.dirname(warm.program), *extra]
    sys.executable = warm.executable
    sys.argv[:] = [warm.program, *arguments]
    sys.orig_argv[:] = [warm.executable, *sys.argv]
    main = types.ModuleType("__main__")
    main.__file__, main.__dict__["__builtins__"] = warm.program, builtins
    sys.modules["__main__"] = main
    _forget(warm.modules, plain=env.keys() <= _PLAIN)
    if warm.hand_over is not None:
        warm.hand_over()


def _forget(kept: frozenset[str], *, plain: bool) -> None:
    """Leave the modules a cold pytest would have, as it would have them."""
    for name in set(sys.modules) - kept - {"__main__"}:
        if not plain or name.partition(".")[0] not in _SLOW:
            del sys.modules[name]
    hypothesis = sys.modules.get("hypothesis.configuration")
    if hypothesis is not None:
        hypothesis.set_hypothesis_home_dir(os.path.abspath(".hypothesis"))


def _open_streams(unbuffered: bool) -> None:
    """Streams on the new descriptors, as the interpreter opens them when it starts."""
    import io

    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        direct = unbuffered and mode == "w"
        buffer = open(number, f"{mode}b", buffering=0 if direct else -1, closefd=False)  # noqa: SIM115
        raw = buffer if direct else buffer.raw  # type: ignore[attr-defined]
        raw.name = f"<{name}>"  # type: ignore[misc]
        stream = io.TextIOWrapper(
            buffer,
            encoding="utf-8",
            errors=getattr(sys, f"__{name}__").errors,
            newline=None if mode == "r" else "\n",
            line_buffering=mode == "w" and not unbuffered and (raw.isatty() or name == "stderr"),
            write_through=direct,
        )
        vars(stream)["mode"] = mode
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _run() -> int:
    """pytest's own entry point, then what an interpreter does when it ends."""
    import atexit
    import threading

    import pytest

    code: object = 1
    try:
        code = pytest.console_main()
    except SystemExit as stop:
        code = stop.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    return code if isinstance(code, int) else 1
