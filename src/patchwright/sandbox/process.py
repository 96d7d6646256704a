"""Boxes that are mere folders: commands run as this user on this machine. It isolates NOTHING.

For machines without namespaces or Docker, and only for code you trust: files, network and processes of
the machine are open to every command. What holds: a clean environment, a folder of its own, time
limits, bounded output, and the end of every process that kept its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox import archive, owner
from patchwright.sandbox.base import BoxSpec, Handler
from patchwright.sandbox.box import Box, Command
from patchwright.sandbox.connections import served
from patchwright.sandbox.files import read_file, write_file
from patchwright.sandbox.marked import MARK, kill_marked
from patchwright.sandbox.output import CANNOT_RUN, LONG_COMMAND, TIMED_OUT, Output, render
from patchwright.sandbox.rootfs import GITCONFIG
from patchwright.sandbox.trees import TreeCopy
from patchwright.types import Exec

_FOLDERS = ("work", "home", "tmp")
_PREFIX = "patchwright-box-"
_OWNER = "owner"
"""File in a box's folder that says which program made it."""
_CHUNK = 64 * 1024
_LAST_DRAIN = 1024 * 1024


class ProcessBox(Box):
    """One folder and the commands run in it; see `Sandbox` for the contract."""

    def __init__(self, spec: BoxSpec, root: Path, backend: ProcessBackend) -> None:
        super().__init__(spec)
        self._root = root
        self._backend = backend
        self._numbers = itertools.count()
        self._listening: asyncio.Server | None = None

    @property
    def workdir(self) -> str:
        """Where the working directory really is; `spec.workdir` leads here in every argument."""
        return str(self._root / "work")

    async def fork(self) -> ProcessBox:
        """See `Sandbox.fork`; the copied places are the box's folder."""
        async with self._turns.shared():
            self._check_open()
            return await self._backend.fork(self._spec, self._root)

    async def listen(self, serve: Handler, *, port: int = 0) -> int:
        """See `Sandbox.listen`. It is a port of this machine, open to whoever is on it."""
        self._check_open()
        self._hang_up()
        self._listening = await asyncio.start_server(served(serve), "127.0.0.1", 0)
        return int(self._listening.sockets[0].getsockname()[1])

    async def read(self, path: str) -> bytes:
        """The content of a file of at most 64 MiB; see `Sandbox.read`."""
        self._check_open()
        return read_file(self._real(path))

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file; see `Sandbox.write`."""
        self._check_open()
        write_file(self._real(path), data, mode)

    async def _run(self, command: Command) -> Exec:
        mark = f"{self._root.name}:{next(self._numbers)}:"
        env = {**self._environment(), **command.env, MARK: mark}
        try:
            return await self._run_in(self._real(command.cwd), env, command)
        except (OSError, ValueError) as error:
            return Exec(code=CANNOT_RUN, output=f"bash: {error}\n")

    def _hang_up(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _end(self) -> None:
        self._hang_up()
        kill_marked(f"{self._root.name}:")
        _remove(self._root)

    def _real(self, path: str) -> str:
        """`path` on this machine: relative to, or below `spec.workdir`, it is in the box's folder."""
        inside = path.removeprefix(self._spec.workdir)
        if inside != path and (not inside or inside.startswith("/")):
            path = inside.lstrip("/")
        return str(Path(self.workdir) / path)

    def _environment(self) -> dict[str, str]:
        path = f"{sys.prefix}/bin:{os.environ.get('PATH', os.defpath)}"
        home, temporary = str(self._root / "home"), str(self._root / "tmp")
        basic = {"PATH": path, "HOME": home, "LANG": "C.UTF-8", "TMPDIR": temporary}
        return {**basic, "USER": "agent", "LOGNAME": "agent", **self._spec.env}

    async def _run_in(self, cwd: str, env: dict[str, str], command: Command) -> Exec:
        started = time.monotonic()
        readable, writable = os.pipe()
        os.set_blocking(readable, False)
        reader = _PipeReader(readable, command.on_output)
        try:
            with tempfile.TemporaryFile(dir=self._root) as given:
                given.write(command.stdin)
                given.seek(0)
                process = await self._spawn(command.text, cwd, env, given, writable)
        except BaseException:
            reader.close()
            raise
        finally:
            os.close(writable)
        try:
            timed_out = await _wait(process, reader.failure, command.timeout, env[MARK])
        finally:
            output = reader.close()
        if reader.failure.done():
            raise reader.failure.result()
        code = process.returncode or 0
        head, omitted, tail = output.parts()
        return Exec(
            code=TIMED_OUT if timed_out else code if code >= 0 else 128 - code,
            output=render(head, omitted, tail),
            timed_out=timed_out,
            omitted=omitted,
            seconds=time.monotonic() - started,
        )

    async def _spawn(
        self, command: str, cwd: str, env: dict[str, str], stdin: IO[bytes], output: int
    ) -> asyncio.subprocess.Process:
        arguments = ["-c", command.encode("utf-8", "replace").decode()]
        if len(command) > LONG_COMMAND:
            script = self._root / "command"
            script.write_text(arguments[1], encoding="utf-8")
            arguments = [str(script)]
        return await asyncio.create_subprocess_exec(
            "bash", *arguments, cwd=cwd, env=env, stdin=stdin, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip


class _PipeReader:
    """Collects a pipe as it fills, without waiting for everyone who holds its other end."""

    def __init__(self, fd: int, on_output: Callable[[bytes], None] | None) -> None:
        self._fd = fd
        self._on_output = on_output
        self._output = Output()
        self._loop = asyncio.get_running_loop()
        self.failure: asyncio.Future[Exception] = self._loop.create_future()
        """What the listener raised: nobody wants to hear the rest."""
        self._loop.add_reader(fd, self._read)

    def close(self) -> Output:
        """Stop, with what is in the pipe now."""
        self._loop.remove_reader(self._fd)
        drained = 0
        while drained < _LAST_DRAIN and (count := self._read()):
            drained += count
        os.close(self._fd)
        return self._output

    def _read(self) -> int:
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return 0
        self._output.add(data)
        if data:
            self._tell(data)
        else:
            self._loop.remove_reader(self._fd)
        return len(data)

    def _tell(self, data: bytes) -> None:
        if self._on_output is not None and not self.failure.done():
            try:
                self._on_output(data)
            except Exception as error:
                self.failure.set_result(error)


class ProcessBackend:
    """Opens `ProcessBox`es. It isolates nothing: choose it by name, for trusted code only."""

    name = "process"

    def __init__(self) -> None:
        self._boxes: set[ProcessBox] = set()
        self._closed = False
        self._reaped = False

    async def open(self, spec: BoxSpec) -> ProcessBox:
        """A fresh folder; see `SandboxBackend.open`. Raises ConfigError for an image."""
        if spec.image != "host":
            raise ConfigError(
                f"image {spec.image!r}: process boxes are folders of this machine (image 'host'); "
                "use `--sandbox docker` for images"
            )
        if spec.mounts:
            raise ConfigError(
                "process boxes cannot show folders elsewhere, which an agent inside of its box needs; use "
                "`--sandbox namespace` or `--sandbox docker`, or an agent outside"
            )
        root = self._root()
        (root / "home" / ".gitconfig").write_text(GITCONFIG, encoding="utf-8")
        try:
            if spec.archive:
                archive.unpack(spec.archive, str(root / "work"))
        except (archive.ArchiveError, OSError) as error:
            _remove(root)
            raise SandboxError(f"a box could not be opened: {error}") from error
        return self._box(spec, root)

    async def fork(self, spec: BoxSpec, original: Path) -> ProcessBox:
        """A box of `spec` with a copy of another one's folder; see `Sandbox.fork`."""
        root = self._root()
        try:
            await asyncio.to_thread(_copy, original, root)
        except OSError as error:
            _remove(root)
            raise SandboxError(f"a box could not be forked: {error}") from error
        return self._box(spec, root)

    def _root(self) -> Path:
        if self._closed:
            raise SandboxError("the sandbox backend is closed")
        if not self._reaped:
            _reap()
            self._reaped = True
        root = Path(tempfile.mkdtemp(prefix=_PREFIX))
        (root / _OWNER).write_text(owner.this_program(), encoding="ascii")
        for name in _FOLDERS:
            (root / name).mkdir()
        return root

    def _box(self, spec: BoxSpec, root: Path) -> ProcessBox:
        box = ProcessBox(spec, root, self)
        self._boxes = {other for other in self._boxes if not other.closed} | {box}
        return box

    async def close(self) -> None:
        """Close every box. Closing twice is allowed."""
        self._closed = True
        for box in self._boxes:
            await box.close()
        self._boxes.clear()


async def _wait(
    process: asyncio.subprocess.Process, failure: asyncio.Future[Exception], limit: float, mark: str
) -> bool:
    """Wait for the shell to end; whether its time was up. Kills the command then, at a failure of its
    listener, and when cancelled.
    """
    ended = asyncio.ensure_future(process.wait())
    either: set[asyncio.Future[Any]] = {ended, failure}
    try:
        await asyncio.wait(either, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        return not ended.done() and not failure.done()
    finally:
        if not ended.done():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            kill_marked(mark)
        await ended


def _copy(original: Path, copy: Path) -> None:
    for name in _FOLDERS:
        source, target = (os.open(root / name, os.O_RDONLY | os.O_DIRECTORY) for root in (original, copy))
        try:
            TreeCopy(source, target, owner=None).run()
        finally:
            os.close(source)
            os.close(target)


def _reap() -> None:
    """End the boxes of this user's programs that died, and remove their folders."""
    for root in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if root.is_symlink() or root.stat().st_uid != os.getuid():
                continue
            program = (root / _OWNER).read_text(encoding="ascii")
        except (OSError, ValueError):
            continue  # one that is being made, or removed
        if owner.is_dead(program):
            kill_marked(f"{root.name}:")
            _remove(root)


def _remove(root: Path) -> None:
    """Remove the folder, with what the box made unreadable."""
    for folder, names, _ in os.walk(root):
        for name in names:
            path = Path(folder) / name
            with contextlib.suppress(FileNotFoundError):  # another program may be at it too
                if not path.is_symlink():
                    path.chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)
