"""Runs a Python program as an ordinary user of this machine, also where the tests are root's.

Root's folders, in which the interpreter may lie, are closed to others. So the program gets a mount namespace
of its own, in which a closed folder is replaced by an open one that holds nothing but what the program needs.
"""

import os
import subprocess
import sys
from pathlib import Path

import patchwright
from patchwright.sandbox import syscalls

USER = 54_321
"""Belongs to nobody."""
SOURCE = str(Path(patchwright.__file__).parents[1])


def run_as_ordinary_user(program, *arguments, readable=(), timeout=300):
    """Run the program text with `arguments`; its stdout. `readable` folders can be reached too."""
    needed = [sys.prefix, sys.base_prefix, os.path.realpath(sys.base_prefix), SOURCE, *map(str, readable)]
    command = [sys.executable, __file__, ":".join(needed), program, *arguments]
    env = {**os.environ, "HOME": "/nonexistent", "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _open_up(needed):
    """Let everybody reach the `needed` paths, in this process's own mount namespace."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    held = {path: os.open(path, os.O_PATH) for path in needed}
    for closed in _closed(needed):
        syscalls.mount("open", str(closed), "tmpfs", 0, "mode=0755")
    for path, fd in held.items():
        if not os.path.lexists(path):
            Path(path).mkdir(parents=True)
            syscalls.bind(f"/proc/self/fd/{fd}", path)


def _closed(needed):
    """The topmost closed folders above these paths."""
    parents = {parent for path in needed for parent in Path(path).parents if not parent.stat().st_mode & 1}
    return [folder for folder in parents if not parents & set(folder.parents)]


def main():
    needed, program, *arguments = sys.argv[1:]
    if os.geteuid() == 0:
        _open_up(needed.split(":"))
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    os.execv(sys.executable, [sys.executable, "-c", program, *arguments])


if __name__ == "__main__":
    main()
