"""A real node in a process of its own, for the tests of this folder."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import httpx

from patchwright.fleet.node_client import NodeClient


@dataclass
class NodeProcess:
    process: subprocess.Popen
    url: str
    token: str

    def client(self, token=None):
        return NodeClient(self.url, self.token if token is None else token, patience=5)

    def post(self, path, body=None, *, token=None):
        """As curl would do it: the status, and the answer."""
        given = {"content": body} if isinstance(body, bytes) else {"json": body}
        reply = httpx.post(self.url + path, headers=self.headers(token), timeout=60, **given)
        return reply.status_code, reply.json()

    def get(self, path, *, token=None):
        return httpx.get(self.url + path, headers=self.headers(token), timeout=60)

    def headers(self, token=None):
        token = self.token if token is None else token
        return {"authorization": f"Bearer {token}"} if token else {}

    def metric(self, verb):
        """How many requests `/container/VERB` was asked."""
        text = self.get("/metrics").text
        name = rf'patchwright_node_requests_total{{route="/container/{verb}",status="\d+"}} (\d+)'
        return sum(int(count) for count in re.findall(name, text))

    def create(self, **fields):
        status, answer = self.post("/container/create", {"image": "host", **fields})
        assert status == 200, answer
        return answer["container_id"]

    def sh(self, box, command, **fields):
        status, answer = self.post("/container/exec", {"container_id": box, "command": command, **fields})
        assert status == 200, answer
        return answer["output"]


@contextlib.contextmanager
def node_process(folder, *flags, env=None, port=0):
    """A node that keeps its files in `folder`, killed at the end."""
    token = folder / "node.token"
    command = [sys.executable, "-m", "patchwright.cli", "node", "serve", f"--port={port}"]
    process = subprocess.Popen(
        [*command, f"--token-file={token}", f"--audit={folder / 'audit.jsonl'}", "--grace=2", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(env or {})},
    )
    try:
        url = ""
        while not url:
            line = process.stdout.readline()
            assert line, f"the node ended with {process.wait()}"
            found = re.search(r"https?://\S+", line)
            url = found[0] if found else ""
        yield NodeProcess(process, url, token.read_text().strip() if token.exists() else "")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()


def wait_for(condition, seconds=60.0):
    """Wait until `condition()` holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)
