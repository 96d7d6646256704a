"""Nodes and pools as processes of their own, for the tests that kill them."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from patchwright.fleet.client import PoolClient

PATCHWRIGHT = Path(sys.executable).with_name("patchwright")
_FIRST = 20_000 + 1000 * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_PORTS = itertools.cycle(_FIRST + (os.getpid() + number) % 1000 for number in range(1000))


class Server:
    """One `patchwright node|pool serve`; it says where it listens on stderr."""

    def __init__(
        self, folder: Path, *arguments: object, env: Mapping[str, str] | None = None, files: int | None = None
    ) -> None:
        """`files` bounds how many the process may have open."""
        self._folder = folder
        self._before = () if files is None else ("sh", "-c", f'ulimit -n {files}; exec "$0" "$@"')
        self._arguments = [str(argument) for argument in arguments]
        self._env = dict(env or {})
        self.start()

    def start(self) -> None:
        environment = {
            **os.environ,
            **self._env,
            "XDG_CONFIG_HOME": f"{self._folder}/config",
            "XDG_STATE_HOME": f"{self._folder}/state",
        }
        self.process = subprocess.Popen(
            [*self._before, PATCHWRIGHT, *self._arguments], stderr=subprocess.PIPE, env=environment, text=True
        )
        lines = iter(self.process.stderr.readline, "")
        found = next((line.split()[1] for line in lines if line.split()[:1] in (["node"], ["pool"])), None)
        assert found is not None, "it ended before it could answer"
        self.url = found
        threading.Thread(target=lambda: list(lines), daemon=True).start()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0


class Fleet:
    """Two nodes and a pool, all with tokens."""

    def __init__(self, folder: Path, *, ttl: float = 60.0, max_per_node: int = 16) -> None:
        self.folder = folder
        self.nodes = [Server(folder, "node", "serve", "--port", free_port()) for _ in range(2)]
        addresses = [part for node in self.nodes for part in ("--node", node.url)]
        port = free_port()
        options = ("--ttl", ttl, "--look-seconds", 0.2, "--max-per-node", max_per_node)
        self.pool = Server(folder, "pool", "serve", "--port", port, *addresses, *options)
        self.journal = folder / "config" / "patchwright" / f"pool-{port}.db"
        self.token_file = folder / "config" / "patchwright" / "pool.token"

    def client(self, *, direct: bool = True, patience: float = 30.0) -> PoolClient:
        return PoolClient(
            self.pool.url, self.token_file.read_text().strip(), direct=direct, patience=patience
        )

    def stop(self) -> None:
        for server in (self.pool, *self.nodes):
            if server.process.poll() is None:
                with contextlib.suppress(AssertionError):
                    server.stop()
            server.process.stderr.close()


def free_port() -> int:
    """Below those the kernel gives to who asks for any, and this worker's own: nobody takes it meanwhile."""
    for port in _PORTS:
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("every port is taken")
