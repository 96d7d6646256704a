"""The local engine in a process of its own: what recipes use.

The model's thread and the driver's event loop then never wait for one interpreter lock, and a crash of the
model is an EngineError here. Imports no torch: only `engine/child.py`, the other end, does.
"""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from patchwright.engine.config import LocalEngineConfig
from patchwright.engine.frontend import EVERYONE, Deliver, Event, Frontend
from patchwright.engine.wire import Abort, Close, Load, Start, Started, Submit, receive, send
from patchwright.errors import ConfigError, EngineError
from patchwright.types import Sampling, Weights

__all__ = ["ProcessEngine"]

_READING = 60
"""Seconds the child may take to read an order. That thread of it does nothing else, but many long prompts
are more than the socket holds, and a machine that is overloaded may leave it no time for many seconds."""
_ENDING = 2
"""Seconds the child may take to end when told to."""


class ProcessEngine(Frontend):
    """A `LocalEngine` in a child process; same protocol, same options. Blocks until the model is loaded.

    Raises ConfigError when the folder cannot be served, EngineError when the process dies while starting.

    Example: `ProcessEngine("runs/demo/weights/v3", config=LocalEngineConfig(threads=1))`
    """

    def __init__(self, path: str | Path, *, config: LocalEngineConfig | None = None) -> None:
        config = config or LocalEngineConfig()
        super().__init__(
            lambda deliver: _Process(Path(path), config, deliver), config.max_running + config.max_queue
        )

    @property
    def pid(self) -> int:
        """Process id of the child."""
        assert isinstance(self._backend, _Process)
        return self._backend.pid


class _Process:
    """The parent's end: sends orders, and reads events on a thread of its own."""

    def __init__(self, path: Path, config: LocalEngineConfig, deliver: Deliver) -> None:
        self.dead = ""
        self._deliver = deliver
        self._closing = False
        self._sending = threading.Lock()
        self._link, theirs = socket.socketpair()
        self._link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", _READING, 0))
        with theirs:
            command = [sys.executable, "-P", "-m", "patchwright.engine.child", str(theirs.fileno())]
            self._child = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        self.pid = self._child.pid
        self.max_context = self._started(Start(path, config))
        self._reader = threading.Thread(target=self._read, name="patchwright-engine-events", daemon=True)
        self._reader.start()

    def _started(self, start: Start) -> int:
        self._send(start)
        answer = receive(self._link)
        if isinstance(answer, Started) and not answer.error:
            return answer.max_context
        self._closing = True
        self._stop()
        self._link.close()
        if isinstance(answer, Started):
            raise ConfigError(answer.error)
        raise EngineError(f"the engine process died while starting ({_cause(self._child.returncode)})")

    # --- orders -------------------------------------------------------------------------------

    def submit(self, key: int, prompt: Sequence[int], sampling: Sampling, streaming: bool) -> None:
        """Queue a request."""
        self._send(Submit(key, list(prompt), sampling, streaming))

    def abort(self, key: int) -> None:
        """Drop a request."""
        self._send(Abort(key))

    def load(self, key: int, weights: Weights) -> None:
        """Replace the weights between two steps."""
        # The child inherits this process's folder, but a path should not depend on that.
        self._send(Load(key, Weights(version=weights.version, path=str(Path(weights.path).resolve()))))

    def close(self) -> None:
        """End the child; killed if it does not end by itself."""
        self._closing = True
        self._send(Close())
        self._stop()
        self._reader.join()

    def _send(self, message: object) -> None:
        try:
            with self._sending:
                send(self._link, message)
        except OSError:
            self._child.kill()  # gone or stuck; the reader sees the end and tells everyone

    def _stop(self) -> None:
        try:
            self._child.wait(_ENDING)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    # --- events -------------------------------------------------------------------------------

    def _read(self) -> None:
        while (events := receive(self._link)) is not None:
            self._deliver(events)
        code = self._child.wait()
        self.dead = "the engine is closed" if self._closing else f"the engine process died ({_cause(code)})"
        self._deliver([Event(EVERYONE, error=self.dead)])
        self._link.close()


def _cause(code: int | None) -> str:
    if code is not None and code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"exit code {code}"
