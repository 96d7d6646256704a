"""PID 1 of a namespace box: runs commands one at a time, reads and writes files, reaps everything.

Standard library only; forked from the fork server, so it starts without an exec. It ends when the
client's end of the socket closes, and with it, by the kernel's rule for PID 1, every process of the box.
"""

# ruff: noqa: PTH118
# Paths come as strings from the socket and go straight to system calls

from __future__ import annotations

import errno
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from patchwright.sandbox import footprint, processes, wire
from patchwright.sandbox.archive import pack
from patchwright.sandbox.files import read_file, write_file
from patchwright.sandbox.output import CANNOT_RUN, LONG_COMMAND, TIMED_OUT, Output
from patchwright.sandbox.resident import Loaded
from patchwright.sandbox.stream import Stream
from patchwright.sandbox.tunnel import Tunnel
from patchwright.sandbox.warm import Calls, Warm

SHELL = "/bin/bash"
_CHUNK = 64 * 1024
_LAST_DRAIN = 1024 * 1024
"""Most bytes read after a command has ended, should background processes write without end."""
_MUCH = 64 * 1024
"""Bytes handled since memory was last given back by which it is worth the while."""
_DEFAULTS = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD]


@dataclass
class _Command:
    """The command being run."""

    id: int
    pid: int
    pipe: int
    deadline: float
    bystanders: processes.Known
    """Processes that earlier commands left in the background: they outlive this one."""
    started: float = field(default_factory=time.monotonic)
    output: Output = field(default_factory=Output)
    timed_out: bool = False
    stream: bool = False
    """Whether the client wants the output as it comes."""


class Runner:
    """Serves one client over `control` until it hangs up."""

    def __init__(
        self,
        control: socket.socket,
        workdir: str,
        env: dict[str, str],
        warm: Warm | None,
        loaded: Loaded | None = None,
    ) -> None:
        self._control = control
        self._workdir = workdir
        self._env = env
        self._loaded = loaded
        self._parser = wire.Parser()
        self._poll = select.poll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._command: _Command | None = None
        self._stream = Stream(control)
        self._backlog: deque[wire.Frame] = deque()
        """Requests that arrived while a command ran, or was dying after its cancellation."""
        self._handled = 0
        """Bytes of output and of replies since memory was given back."""
        self._woken = self._catch_children()
        self._watch(control.fileno(), self._on_control)
        self._calls = Calls(warm, self._watch, self._unwatch) if warm else None
        self._tunnel = Tunnel(self._reply, self._watch, self._unwatch)

    def run(self) -> None:
        """Serve. Returns never: ends the process when the client is gone."""
        while True:
            for fd, _ in self._poll.poll(self._patience()):
                handler = self._handlers.get(fd)
                if handler is not None:  # an earlier event of the same round may have ended it
                    handler()
            self._check_deadline()
            if self._command is None and self._handled > _MUCH:
                footprint.give_back()
                self._handled = 0

    # --- events ---

    def _watch(self, fd: int, handler: Callable[[], None], events: int = select.POLLIN) -> None:
        self._handlers[fd] = handler
        self._poll.register(fd, events)

    def _unwatch(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def _catch_children(self) -> int:
        """A descriptor that is readable when a child has ended."""
        readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._watch(readable, self._on_child)
        return readable

    def _patience(self) -> float | None:
        """Milliseconds until the deadline."""
        if self._command is None or self._command.timed_out:
            return None
        return max(0.0, (self._command.deadline - time.monotonic()) * 1000)

    def _check_deadline(self) -> None:
        if self._patience() == 0.0 and self._command is not None:
            self._kill(self._command)

    def _on_control(self) -> None:
        try:
            data = self._control.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            os._exit(0)
        for header, body in self._parser.feed(data):
            if header["op"] == "cancel":
                self._cancel(header["id"])
            elif header["op"] == "tunnel":
                self._tunnel.take(header, body)
            else:
                self._backlog.append((header, body))
        self._serve_backlog()

    def _on_child(self) -> None:
        """Reap every process that has ended: our own, and the orphans of the box."""
        os.read(self._woken, _CHUNK)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            code = _exit_code(status)
            if self._command is not None and pid == self._command.pid:
                self._finish(self._command, code)
            elif self._calls is not None:
                self._calls.ended(pid, code)

    # --- requests ---

    def _cancel(self, number: int) -> None:
        self._backlog = deque(frame for frame in self._backlog if frame[0]["id"] != number)
        if self._command is not None and self._command.id == number:
            self._kill(self._command)

    def _serve_backlog(self) -> None:
        while self._backlog and self._command is None:
            self._serve(*self._backlog.popleft())

    def _serve(self, header: wire.Header, body: bytes) -> None:
        operation = header["op"]
        try:
            if operation == "exec":
                self._start(header, body)
            elif operation == "read":
                self._reply({"id": header["id"]}, read_file(self._absolute(header["path"])))
            elif operation == "write":
                write_file(self._absolute(header["path"]), body, header["mode"])
                self._reply({"id": header["id"]})
            elif operation == "pack":
                self._reply({"id": header["id"]}, pack(header["folders"]))
            elif operation == "listen":
                self._reply({"id": header["id"], "port": self._tunnel.listen(header["port"])})
        except (OSError, ValueError, MemoryError) as error:
            self._refuse(header, error)

    def _refuse(self, header: wire.Header, error: Exception) -> None:
        """A command that cannot start is a failing result, a file that cannot be had an error."""
        if header["op"] != "exec":
            self._reply({"id": header["id"], "errno": _error_number(error)})
            return
        result = {"code": CANNOT_RUN, "timed_out": False, "omitted": 0, "seconds": 0.0}
        self._reply({"id": header["id"], **result}, f"{SHELL}: {error}\n".encode("utf-8", "replace"))

    def _absolute(self, path: str) -> str:
        return os.path.join(self._workdir, path)

    def _reply(self, header: wire.Header, body: bytes = b"") -> None:
        self._handled += len(body)
        try:
            self._stream.finish()
            self._control.sendall(wire.pack(header, body))
        except OSError:
            os._exit(0)

    # --- commands ---

    def _start(self, header: wire.Header, body: bytes) -> None:
        size = header["command"]
        command, stdin = body[:size], body[size:]
        bystanders = processes.known() if processes.any_other() else {}
        started = time.monotonic()
        os.chdir(self._absolute(header["cwd"]))
        readable, writable = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(readable, False)
        try:
            pid = self._spawn(command, stdin, {**self._env, **header["env"]}, writable)
        except (OSError, ValueError):
            os.close(readable)
            raise
        finally:
            os.close(writable)
        deadline = started + header["timeout"]
        self._command = _Command(
            header["id"], pid, readable, deadline, bystanders, started, stream=header.get("stream", False)
        )
        self._watch(readable, self._on_output)

    def _spawn(self, command: bytes, stdin: bytes, env: dict[str, str], output: int) -> int:
        if self._loaded is not None and command == self._loaded.command:
            return self._loaded.start(_memory_file(stdin), env, output)
        return _spawn(command, stdin, env, output)

    def _on_output(self) -> None:
        """Read once, so that the control socket and the deadline get their turn."""
        if self._command is not None:
            data = _read_some(self._command.pipe)
            if data:
                self._took(self._command, data)
            elif data is not None:  # every writer is gone; the exit follows
                self._unwatch(self._command.pipe)

    def _took(self, command: _Command, data: bytes) -> None:
        self._handled += len(data)
        command.output.add(data)
        if command.stream:
            try:
                self._stream.offer(command.id, data)
            except OSError:
                os._exit(0)

    def _kill(self, command: _Command) -> None:
        command.timed_out = True
        processes.kill_all_but(command.bystanders)

    def _finish(self, command: _Command, code: int) -> None:
        """The shell has ended: take what its pipe holds, and answer without waiting for others."""
        self._command = None
        drained = 0
        while drained < _LAST_DRAIN and (data := _read_some(command.pipe)):
            self._took(command, data)
            drained += len(data)
        self._discard_rest(command.pipe)
        head, omitted, tail = command.output.parts()
        header = {
            "id": command.id,
            "code": TIMED_OUT if command.timed_out else code,
            "timed_out": command.timed_out,
            "omitted": omitted,
            "head": len(head),
            "seconds": time.monotonic() - command.started,
        }
        self._reply(header, head + tail)
        self._serve_backlog()

    def _discard_rest(self, pipe: int) -> None:
        """Go on reading for the background processes that hold the pipe, until the last is gone."""

        def discard() -> None:
            if _read_some(pipe) == b"":
                self._unwatch(pipe)
                os.close(pipe)

        if pipe in self._handlers:
            self._handlers[pipe] = discard
        else:
            os.close(pipe)


def _spawn(command: bytes, stdin: bytes, env: dict[str, str], output: int) -> int:
    """Start the shell in a process group of its own, with `output` as stdout and stderr; its pid.

    Not in a session of its own: the kernel shares out processor time by session, and hundreds of boxes
    would then starve the one process they all wait for, the engine or the trainer.
    """
    opened = []
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = []
    try:
        if stdin:
            opened.append(_memory_file(stdin))
            actions.append((os.POSIX_SPAWN_DUP2, opened[-1], 0))
        else:
            actions.append((os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0))
        actions += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
        arguments: list[bytes] = [b"bash", b"-c", command]
        if len(command) > LONG_COMMAND:
            opened.append(_memory_file(command))
            os.set_inheritable(opened[-1], True)
            arguments = [b"bash", b"/proc/self/fd/%d" % opened[-1]]
        return os.posix_spawn(
            SHELL, arguments, env, file_actions=actions, setpgroup=0, setsigmask=[], setsigdef=_DEFAULTS
        )
    finally:
        for fd in opened:
            os.close(fd)


def _memory_file(content: bytes) -> int:
    fd = os.memfd_create("patchwright")
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _read_some(fd: int) -> bytes | None:
    """What can be read now: None when nothing is there yet, b"" at the end."""
    try:
        return os.read(fd, _CHUNK)
    except BlockingIOError:
        return None


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _error_number(error: Exception) -> int:
    if isinstance(error, MemoryError):
        return errno.ENOMEM
    return getattr(error, "errno", None) or errno.EINVAL
