"""PID 1 of a Docker box: the runner of the namespace boxes, served over the container's stdin and stdout.

Standard library only, Python 3.9 or newer: it runs on the image's own python3. `docker.py` sends it in.
It ends when stdin closes, so a box whose owner dies goes with it.
"""

# ruff: noqa: PTH103, PTH123
# What is imported here is sent into every box, compiled there, and delays its start

from __future__ import annotations

import os
import select
import signal
import socket
from typing import cast

from patchwright.sandbox import archive, seccomp, syscalls, wire
from patchwright.sandbox.runner import Runner


class _Pipes:
    """Two pipes with the methods of a socket that the runner uses."""

    def __init__(self) -> None:
        self._source, self._sink = _take_over(0), _take_over(1)
        os.set_blocking(self._source, False)
        os.set_blocking(self._sink, False)

    def fileno(self) -> int:
        return self._source

    def recv(self, size: int, _flags: int = 0) -> bytes:
        return os.read(self._source, size)

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._sink, view) :]
            except BlockingIOError:
                self._wait()

    def send(self, data: bytes, _flags: int = 0) -> int:
        return os.write(self._sink, data)

    def _wait(self) -> None:
        room = select.poll()
        room.register(self._sink, select.POLLOUT)
        room.poll()


def main() -> None:
    """Open the box as its first frame says, and serve it until the client hangs up."""
    signal.signal(signal.SIGINT, lambda *_: None)  # one from inside the box must not raise here
    pipes = _Pipes()
    control = cast("socket.socket", pipes)
    header, body = _first_frame(pipes)
    try:
        syscalls.set_dumpable(False)
        seccomp.apply()  # over the engine's own filter, which may be none
        runner = _furnish(control, header, body)
    except (archive.ArchiveError, OSError, ValueError) as error:
        pipes.sendall(wire.pack({"error": f"a box could not be opened: {error}"}))
        return
    pipes.sendall(wire.pack({"id": header["id"]}))
    runner.run()


def _furnish(control: socket.socket, header: wire.Header, body: bytes) -> Runner:
    workdir, inherited = header["workdir"], dict(os.environ)
    if inherited.get("LC_CTYPE") == "C.UTF-8":  # Python's own doing, where the image sets no locale
        del inherited["LC_CTYPE"]
    env = {"LANG": "C.UTF-8", **inherited, **header["env"]}
    os.makedirs(workdir, exist_ok=True)
    if header["forked"]:
        archive.restore(body)
        return Runner(control, workdir, env, None)
    if body:
        archive.unpack(body, workdir)
    try:
        with open(env["HOME"] + "/.gitconfig", "x", encoding="utf-8") as file:
            file.write(header["gitconfig"])
    except FileExistsError:
        pass  # the image has its own
    return Runner(control, workdir, env, None)


def _take_over(fd: int) -> int:
    """A copy of `fd` that commands do not inherit; they find nothing at its old place."""
    copy = os.dup(fd)
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, fd)
    os.close(null)
    return copy


def _first_frame(pipes: _Pipes) -> wire.Frame:
    parser = wire.Parser()
    os.set_blocking(pipes.fileno(), True)
    while True:
        data = pipes.recv(1 << 20)
        if not data:
            raise SystemExit
        if frames := parser.feed(data):
            os.set_blocking(pipes.fileno(), False)
            return frames[0]
