"""Boxes by swe-rex on this machine: a server of its own for each, reached by swe-rex's `RemoteDeployment`."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from swerex.deployment.remote import RemoteDeployment
from tests.fleet.pool_processes import free_port

from patchwright.errors import SandboxError
from patchwright.sandbox.swerex_deploy import Machines

_PROGRAM = Path(__file__).with_name("swerex_servers.py")
_ROOT = 'mount --bind "$1" /mnt && exec /mnt/bin/python "$2"'


class Servers:
    """Makes deployments; `deploy` is what a backend takes."""

    def __init__(self):
        unshare = ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]
        self._process = subprocess.Popen(
            [*unshare, "sh", "-c", _ROOT, "servers", sys.prefix, str(_PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._lock = threading.Lock()
        self.made = []

    def deploy(self, image):
        self.made.append(Deployment(self, image))
        return self.made[-1]

    def start(self, token):
        """Port and process id of a new server."""
        with self._lock:
            port = free_port()
            try:
                self._process.stdin.write(f"{port} {token}\n")
                self._process.stdin.flush()
                return port, int(self._process.stdout.readline())
            except (OSError, ValueError):
                raise RuntimeError("this machine makes no namespaces") from None

    def close(self):
        self._process.kill()
        self._process.communicate()


class Deployment(RemoteDeployment):
    """A server that begins and ends with it."""

    def __init__(self, servers, image):
        self.image, self.pid, self._servers = image, 0, servers
        super().__init__(auth_token=secrets.token_hex(8), timeout=5.0)

    async def start(self):
        self._config.port, self.pid = self._servers.start(self._config.auth_token)
        await super().start()
        for _ in range(1200):  # swe-rex's own wait gives an answer a tenth of a second
            if await self.runtime.is_alive(timeout=30):
                return
            await asyncio.sleep(0.1)
        raise TimeoutError("the server did not come up")

    async def stop(self):
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        await super().stop()


@contextlib.contextmanager
def open_servers():
    """Servers, or a skipped test where the kernel has no namespaces with overlays for this user."""
    servers = Servers()
    try:
        try:
            asyncio.run(_try(servers))
        except SandboxError as error:
            pytest.skip(f"no namespaces with an overlay of the root: {error}")
        yield servers
    finally:
        servers.close()


async def _try(servers):
    machines = Machines(servers.deploy)
    await machines.stop(await machines.start(None))
    machines.close()
