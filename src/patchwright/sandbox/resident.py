"""A program held loaded: imported once in the fork server, forked in each box (`Resident` in `base.py`).

Standard library only. The fork server is then started by the program's own interpreter, from a folder of this
machine; `move` makes it believe that it was started where boxes see that folder, so that all it imports
after that, in the fork server and in a box, is found there. Nothing of a box ever reaches the fork server: a
box is a copy of it, and the program that runs there a copy of the box's first process.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable

from patchwright.sandbox import syscalls

_NAME = "resident"
"""Of the program, as a module."""


class Loaded:
    """A program that is ready to be forked. Raises what loading it raises."""

    def __init__(self, command: str, python: str, program: str) -> None:
        self.command = command.encode()
        self._python = python
        self._program = program
        before = dict(os.environ)
        self._main = _load(program)
        self._set = {name: value for name, value in os.environ.items() if before.get(name) != value}
        """Variables that it gave itself."""

    def start(self, stdin: int, env: dict[str, str], output: int) -> int:
        """Fork a process that runs it, as a shell would have started it; its pid. Closes `stdin`."""
        pid = os.fork()
        if pid == 0:
            self._become(stdin, env, output)
        os.close(stdin)
        return pid

    def _become(self, stdin: int, env: dict[str, str], output: int) -> None:
        """The whole life of the program. Never returns."""
        code: object = 1
        try:
            _take_over(stdin, {**env, **self._set}, output)
            sys.argv[:] = [self._program]
            sys.orig_argv[:] = [self._python, self._program]
            code = self._main()
        except SystemExit as stop:
            code = stop.code
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _load(program: str) -> Callable[[], object]:
    spec = importlib.util.spec_from_file_location(_NAME, program)
    if spec is None or spec.loader is None:
        raise ImportError(f"{program} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[_NAME] = module
    spec.loader.exec_module(module)
    main: Callable[[], object] = module.main
    return main


def _take_over(stdin: int, env: dict[str, str], output: int) -> None:
    """Make of a copy of the box's first process what an interpreter is when it starts."""
    os.setpgrp()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, fd in enumerate((stdin, output, output)):
        os.dup2(fd, number)
    os.closerange(3, 65536)
    syscalls.set_dumpable(True)
    syscalls.set_name("python")
    os.environ.clear()
    os.environ.update(env)
    time.tzset()


def move(folders: dict[str, str]) -> None:
    """Let what was imported from `folders` (where they are now -> where they were) be from where they are.

    Code keeps the name of its file, which only tracebacks show.
    """
    for target, source in folders.items():
        for module in list(sys.modules.values()):
            spec = getattr(module, "__spec__", None)
            for thing in (module, spec, getattr(spec, "loader", None)):
                _rename(thing, source, target)
    if folders:
        sys.path_importer_cache.clear()


def _rename(thing: object, old: str, new: str) -> None:
    attributes: object = getattr(thing, "__dict__", None)
    if not isinstance(attributes, dict):
        return  # none, or of a class
    for name, value in list(attributes.items()):
        if isinstance(value, str) and _within(value, old):
            attributes[name] = new + value[len(old) :]
        elif isinstance(value, list):
            value[:] = [new + one[len(old) :] if _within(one, old) else one for one in value]


def _within(path: object, folder: str) -> bool:
    return isinstance(path, str) and (path == folder or path.startswith(f"{folder}/"))
