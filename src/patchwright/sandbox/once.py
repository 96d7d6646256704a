"""The program in a box that can only be called: `python3 tool.pyz BLOB`, one operation a call, one line of
ASCII JSON as the answer. Standard library only, Python 3.7 or newer; `swerex.py` sends it and calls it.

BLOB is a JSON header, a line feed and a body, in base64; or `@` and the file that holds header and body as
they are. A command outlives the call that starts it: a supervisor in a session of its own collects its
output, ends it when its time is up, and leaves the result in a file, for which further calls wait.
"""

# ruff: noqa: PTH100, PTH102, PTH103, PTH104, PTH106, PTH108, PTH110, PTH112, PTH114, PTH118, PTH120, PTH123, PTH208
# Paths come as strings and go straight to system calls

from __future__ import annotations

import base64
import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import time
from typing import Any

from patchwright.sandbox import archive
from patchwright.sandbox.files import read_file, write_file
from patchwright.sandbox.marked import MARK, kill_marked
from patchwright.sandbox.output import CANNOT_RUN, LONG_COMMAND, TIMED_OUT, Output

_PIECE = 4 * 1024 * 1024
"""Most bytes of a file in one answer."""
_CHUNK = 64 * 1024
_LAST_DRAIN = 1024 * 1024
_BEHIND = 1024 * 1024
"""Most bytes of output kept for a listener that has not called."""
_TICK = 0.05
_CANCEL = 10.0
"""Seconds a cancelled command has to be gone."""
_MISSED = struct.Struct("!Q")


def main() -> None:
    """Do what the one argument asks."""
    here = os.path.dirname(os.path.abspath(sys.argv[0]))
    head, _, body = _request(here, sys.argv[1]).partition(b"\n")
    header = json.loads(head)
    try:
        reply = _OPERATIONS[header["op"]](here, header, body)
    except OSError as error:
        reply = {"errno": error.errno or errno.EIO, "error": str(error)}
    except ValueError as error:  # a NUL, or what is no character, in a path
        reply = {"errno": errno.EINVAL, "error": str(error)}
    except (archive.ArchiveError, MemoryError) as error:
        reply = {"error": str(error) or "out of memory"}
    sys.stdout.write(json.dumps(reply) + "\n")


def _request(here: str, argument: str) -> bytes:
    if not argument.startswith("@"):
        return base64.b64decode(argument)
    path = os.path.join(here, argument[1:])
    with open(path, "rb") as file:
        content = file.read()
    os.unlink(path)
    return content


# --- the box ----------------------------------------------------------------------------------


def _open(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Make the working directory, and the git identity where the image has none."""
    os.makedirs(header["workdir"], exist_ok=True)
    home = _environment()["HOME"]
    if body:
        archive.unpack(body, header["workdir"])
    os.makedirs(home, exist_ok=True)
    with contextlib.suppress(FileExistsError), open(os.path.join(home, ".gitconfig"), "x") as file:
        file.write(header["gitconfig"])
    return {}


def _environment() -> dict[str, str]:
    """The server's variables, which are the image's."""
    inherited = dict(os.environ)
    if inherited.get("LC_CTYPE") == "C.UTF-8":  # Python's own doing, where the image sets no locale
        del inherited["LC_CTYPE"]
    return {"PATH": os.defpath, "HOME": os.path.expanduser("~"), "LANG": "C.UTF-8", **inherited}  # noqa: PTH111


def _copied(here: str, workdir: str) -> list[str]:
    """What a fork takes along: folders, and the entries of those that every box has."""
    if os.path.normpath(workdir) == "/":
        raise archive.ArchiveError("a box whose working directory is / cannot be copied")
    home = _environment()["HOME"]
    found = [workdir] if os.path.normpath(home) == "/" else [workdir, home]
    for folder in ("/tmp", "/dev/shm"):
        with contextlib.suppress(FileNotFoundError):
            entries = [os.path.join(folder, name) for name in os.listdir(folder)]
            found += [path for path in entries if path != here and not archive.is_mounted(path)]
    return found


def _pack(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    return _kept(here, archive.pack(_copied(here, header["workdir"]), mounts=False))


def _restore(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Put another box's files in the place of this one's."""
    for path in _copied(here, header["workdir"]):
        _clear(path)
    archive.restore(body)
    return {}


def _clear(path: str) -> None:
    """Remove what is there, but not what is mounted there or below: that may be a volume of many boxes."""
    if not os.path.isdir(path) or os.path.islink(path):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        return
    for name in os.listdir(path):
        entry = os.path.join(path, name)
        if not archive.is_mounted(entry):
            _clear(entry)
    with contextlib.suppress(OSError):  # it is mounted, or something below is
        os.rmdir(path)


# --- files ------------------------------------------------------------------------------------


def _read(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    return _kept(here, read_file(os.path.join(header["workdir"], header["path"])))


def _write(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    write_file(os.path.join(header["workdir"], header["path"]), body, header["mode"])
    return {}


def _kept(here: str, content: bytes) -> dict[str, Any]:
    """The first piece of `content`; all of it is kept for further calls where there is more."""
    if len(content) > _PIECE:
        _put(os.path.join(here, "kept"), content)
    return {"size": len(content), "body": _text(content[:_PIECE])}


def _piece(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """A further piece of what the last call kept; the last one removes it."""
    path = os.path.join(here, "kept")
    with open(path, "rb") as file:
        file.seek(header["offset"])
        content = file.read(_PIECE)
        size = os.fstat(file.fileno()).st_size
    if header["offset"] + len(content) >= size:
        os.unlink(path)
    return {"size": size, "body": _text(content)}


def _put(path: str, content: bytes) -> None:
    with open(path + ".new", "wb") as file:
        file.write(content)
    os.rename(path + ".new", path)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


# --- commands ---------------------------------------------------------------------------------


def _exec(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """Start a supervisor and wait for its command a while."""
    place = os.path.join(here, str(header["number"]))
    os.mkdir(place)
    _put(os.path.join(place, "stdin"), body[header["command"] :])
    lock = os.open(os.path.join(place, "lock"), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    if os.fork() == 0:
        try:
            _detach()
            _put(os.path.join(place, "result"), _Run(place, header, body[: header["command"]]).run())
        finally:
            os._exit(0)  # and with it goes the lock
    os.close(lock)
    return _wait(here, header, b"")


def _detach() -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)


def _wait(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """The result of a command, or what it wrote, or after `piece` seconds that it still runs."""
    place = os.path.join(here, str(header["number"]))
    deadline = time.monotonic() + header["piece"]
    pause = 0.002
    while True:
        alive = _is_supervised(place)  # asked first: a result may come just before the end
        ended = os.path.exists(os.path.join(place, "result"))  # and a chunk just before the result
        reply = _chunk(place) or (_result(place) if ended else None)
        if reply is not None:
            return reply
        if not alive:
            return {"state": "lost"}
        if time.monotonic() > deadline:
            return {"state": "running"}
        time.sleep(pause)
        pause = min(2 * pause, _TICK)


def _chunk(place: str) -> dict[str, Any] | None:
    path = os.path.join(place, "chunk")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        content = file.read()
    os.unlink(path)
    (missed,) = _MISSED.unpack_from(content)
    return {"state": "running", "chunk": _text(content[_MISSED.size :]), "missed": missed}


def _result(place: str) -> dict[str, Any] | None:
    path = os.path.join(place, "result")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as file:
        reply: dict[str, Any] = json.loads(file.read())
    shutil.rmtree(place, ignore_errors=True)
    return reply


def _is_supervised(place: str) -> bool:
    """Whether somebody holds the lock of the command."""
    lock = os.open(os.path.join(place, "lock"), os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _cancel(here: str, header: dict[str, Any], body: bytes) -> dict[str, Any]:
    """End a command that nobody waits for; one that was never started will not be."""
    place = os.path.join(here, str(header["number"]))
    if not os.path.isdir(place):
        os.mkdir(place)
        return {}
    _put(os.path.join(place, "cancel"), b"")
    deadline = time.monotonic() + _CANCEL
    while _is_supervised(place) and time.monotonic() < deadline:
        time.sleep(_TICK)
    shutil.rmtree(place, ignore_errors=True)
    return {}


class _Run:
    """One command under supervision."""

    def __init__(self, place: str, header: dict[str, Any], command: bytes) -> None:
        self._place = place
        self._header = header
        self._command = command
        self._output = Output()
        self._streams = header["stream"]
        self._pending = bytearray()
        """What a listener has not been told."""
        self._missed = 0

    def run(self) -> bytes:
        """The result as JSON."""
        started = time.monotonic()
        try:
            code, timed_out = self._watch()
        except (OSError, ValueError) as error:
            self._add("bash: {}\n".format(error).encode("utf-8", "replace"))  # noqa: UP032
            code, timed_out = CANNOT_RUN, False
        head, omitted, tail = self._output.parts()
        result = {
            "state": "done",
            "code": code,
            "timed_out": timed_out,
            "omitted": omitted,
            "seconds": time.monotonic() - started,
            "head": _text(head),
            "tail": _text(tail),
            "chunk": _text(bytes(self._pending)),
            "missed": self._missed,
        }
        return json.dumps(result).encode()

    def _watch(self) -> tuple[int, bool]:
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        with open(os.path.join(self._place, "stdin"), "rb") as stdin:
            process = self._start(stdin.fileno(), writable)
        os.close(writable)
        timed_out = not self._ends(process, readable)
        if timed_out:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            kill_marked(self._header["mark"])
        code = process.wait()
        self._drain(readable)
        return (TIMED_OUT if timed_out else code if code >= 0 else 128 - code), timed_out

    def _start(self, stdin: int, output: int) -> subprocess.Popen[bytes]:
        argument = [b"-c", self._command]
        if len(self._command) > LONG_COMMAND:
            _put(os.path.join(self._place, "command"), self._command)
            argument = [os.path.join(self._place, "command").encode()]
        cwd = os.path.join(self._header["workdir"], self._header["cwd"])
        env = {**_environment(), **self._header["env"], MARK: self._header["mark"]}
        return subprocess.Popen(
            [b"bash", *argument], cwd=cwd, env=env, stdin=stdin, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip

    def _ends(self, process: subprocess.Popen[bytes], readable: int) -> bool:
        """Collect output until the shell is over; False when its time is before that."""
        deadline = time.monotonic() + self._header["timeout"]
        cancelled = os.path.join(self._place, "cancel")
        closed = False
        while process.poll() is None:
            if time.monotonic() > deadline or os.path.exists(cancelled):
                return False
            if closed:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_TICK)
            elif select.select([readable], [], [], _TICK)[0]:
                closed = not self._take(readable)
            self._offer()
        return True

    def _drain(self, readable: int) -> None:
        """What is in the pipe now, whoever still holds its other end."""
        drained = 0
        with contextlib.suppress(BlockingIOError):
            while drained < _LAST_DRAIN:
                count = self._take(readable)
                drained += count
                if not count:
                    return

    def _take(self, readable: int) -> int:
        data = os.read(readable, _CHUNK)
        self._add(data)
        return len(data)

    def _add(self, data: bytes) -> None:
        self._output.add(data)
        if not self._streams:
            return
        if self._missed or len(self._pending) + len(data) > _BEHIND:
            self._missed += len(data)
        else:
            self._pending += data

    def _offer(self) -> None:
        """Leave what a listener has not been told where the next call finds it, if the last was fetched."""
        path = os.path.join(self._place, "chunk")
        if self._pending and not os.path.exists(path):
            _put(path, _MISSED.pack(self._missed) + self._pending)
            self._pending, self._missed = bytearray(), 0


_OPERATIONS = {
    "open": _open,
    "pack": _pack,
    "restore": _restore,
    "read": _read,
    "write": _write,
    "piece": _piece,
    "exec": _exec,
    "wait": _wait,
    "cancel": _cancel,
}
