"""Starts swe-rex's real server many times, each in mount and process namespaces of its own, over the files of
this machine: what a box writes nobody else sees. Run as a program; `swerex_boxes.py` does so.

It asks for one `PORT TOKEN` a line, and answers with the process id of the server. Everything it started dies
with it. The packages are seen at /mnt, since a box has a /tmp of its own, under which they may be.
"""

import contextlib
import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path

import uvicorn
from swerex import server

CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_BIND, MS_REC_PRIVATE = 0x1000, 0x44000
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
PYTEST = '#!/bin/sh\nexec python3 -m pytest "$@"\n'


def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mount(source, target, kind, flags=0, options=""):
    Path(target).mkdir(exist_ok=True)
    check(LIBC.mount(source.encode(), str(target).encode(), kind.encode(), flags, options.encode()))


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def machine(stage):
    """The files of this machine as the root, with a place of its own for what is written."""
    mount("none", "/", "none", MS_REC_PRIVATE)
    mount("stage", stage, "tmpfs")
    for name in ("upper", "work"):
        (stage / name).mkdir()
    root = stage / "root"
    mount("overlay", root, "overlay", 0, f"lowerdir=/,upperdir={stage}/upper,workdir={stage}/work")
    mount("proc", root / "proc", "proc")
    mount("/dev", root / "dev", "none", MS_BIND)
    mount("/mnt", root / "mnt", "none", MS_BIND)
    for name in ("dev/shm", "tmp"):
        mount("own", root / name, "tmpfs", 0, "mode=1777")
    (root / "boxbin").mkdir()
    (root / "boxbin" / "pytest").write_text(PYTEST)
    (root / "boxbin" / "pytest").chmod(0o755)
    os.chroot(root)
    os.chdir("/")


def serve(stage, port, token):
    """The server, as PID 1 of its namespace."""
    die_with_parent()
    machine(stage)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.environ.clear()
    os.environ.update({"PATH": "/boxbin:/mnt/bin:/usr/bin:/bin", "HOME": "/home/box"})
    sys.argv = ["swerex-remote", "--host", "127.0.0.1", "--port", port, "--auth-token", token]
    server.main()


def start(stage, port, token):
    """Fork twice: a process namespace begins with the children of who asks for it."""
    if os.fork():
        return
    die_with_parent()
    check(LIBC.unshare(CLONE_NEWNS | CLONE_NEWPID))
    child = os.fork()
    if not child:
        with contextlib.suppress(Exception):
            serve(stage, port, token)
        os._exit(1)
    print(child, flush=True)
    os.waitpid(child, 0)
    os._exit(0)


def main():
    uvicorn.Config(server.app).load()  # what is imported now, no server imports again
    signal.signal(signal.SIGCHLD, lambda *_: None)
    with tempfile.TemporaryDirectory() as stage:
        for line in sys.stdin:
            start(Path(stage), *line.split())
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass


if __name__ == "__main__":
    main()
