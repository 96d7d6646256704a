"""Every command of docs/fleet.md, run; the servers it starts stay up until its end."""

import os
import re
import shlex
import subprocess
import threading
from pathlib import Path

import pytest
from tests.e2e.conftest import PATCHWRIGHT
from tests.fleet.pool_processes import free_port

pytestmark = pytest.mark.e2e
PAGE = (Path(__file__).parents[2] / "docs" / "fleet.md").read_text()
PORTS = ("5001", "5002", "18090")


def blocks(page, kind):
    return re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)


class Shell:
    """Runs the page's commands in a folder; `command &` stays up, and is stopped at the end."""

    def __init__(self, folder):
        self.folder = folder
        self.environment = {
            **os.environ,
            "XDG_CONFIG_HOME": f"{folder}/config",
            "XDG_STATE_HOME": f"{folder}/state",
        }
        self.servers = []

    def run(self, line):
        words = [PATCHWRIGHT, *shlex.split(line.removesuffix("&"), comments=True)[1:]]
        if line.endswith("&"):
            self.serve(words)
            return
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300
        )
        print(f"$ {line}\n{done.stdout}{done.stderr}")
        assert done.returncode == 0, line

    def serve(self, words):
        server = subprocess.Popen(
            words, cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        self.servers.append(server)
        assert any(line.startswith("token") for line in server.stderr), words
        threading.Thread(target=server.stderr.read, daemon=True).start()

    def stop(self):
        for server in reversed(self.servers):
            server.terminate()
        assert [server.wait(60) for server in self.servers] == [0] * len(self.servers)


@pytest.fixture
def shell(tmp_path):
    shell = Shell(tmp_path)
    yield shell
    shell.stop()


def test_the_first_part_runs_from_top_to_bottom(shell):
    first = PAGE[: PAGE.index("## Machines of their own")]
    for port in PORTS:
        first = re.sub(rf"\b{port}\b", str(free_port()), first)
    (shell.folder / "fleet.toml").write_text(blocks(first, "toml")[0])
    for block in blocks(first, "bash"):
        for line in block.splitlines():
            shell.run(line)
    assert "resolved" in (shell.folder / "runs" / "remote" / "summary.json").read_text()


def test_the_commands_for_other_machines_run(shell):
    """The addresses become this machine's; installing prints what it would write, for this user, whose
    Python the machine's services may not be able to reach."""
    token = shell.folder / "node.token"
    token.write_text("a-token-of-the-nodes-000000\n")
    second = PAGE[PAGE.index("## Machines of their own") :]
    for line in "".join(blocks(second, "bash")).splitlines():
        local = re.sub(r"10\.0\.0\.\d", "127.0.0.1", line)
        if " install " in line:
            local = f"{line} --print" + " --user" * ("--user" not in line)
        elif "pool serve" in line:
            local = local.replace("pool serve", f"pool serve --port {free_port()}")
        else:
            local += " --rounds 2 --simulated-leases 100"
        shell.run(local)
    assert (shell.folder / "fleet.json").stat().st_size > 500
