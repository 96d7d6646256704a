"""Every command of docs/gateway.md, run; the servers it starts are asked once, and stopped."""

import os
import subprocess
from pathlib import Path

import httpx
import pytest
from tests.e2e.conftest import PATCHWRIGHT, patchwright
from tests.e2e.test_docs import commands
from tests.recipes.chat_endpoint import serving

pytestmark = pytest.mark.e2e
ASKED = {"messages": [{"role": "user", "content": "model: good"}], "max_tokens": 8}


def asked_once(command: list[str], folder: Path) -> None:
    with subprocess.Popen(
        [PATCHWRIGHT, *command], cwd=folder, stderr=subprocess.PIPE, text=True, env=os.environ
    ) as server:
        assert server.stderr is not None
        told = dict(server.stderr.readline().split() for _ in range(3))
        key = {"authorization": f"Bearer {told['api_key']}"}
        answer = httpx.post(f"{told['base_url']}/chat/completions", json=ASKED, headers=key, timeout=60)
        server.terminate()
        server.stderr.read()
    assert answer.status_code == 200 and server.returncode == 0, command


def test_the_gateway_page_runs_from_top_to_bottom(tmp_path: Path):
    counts = ["-s", "sft=0", "-s", "rl=2", "-s", "held_out=0", "-s", "harder=0"]
    assert patchwright("tasks", "synth", "composed", "t", *counts, cwd=tmp_path).returncode == 0
    assert patchwright("train", "new", "--tasks", "t/rl.jsonl", "--out", "DIR", cwd=tmp_path).returncode == 0
    shown = ""
    with serving() as (url, model):
        for command in commands("docs/gateway.md"):
            own = [word.replace("URL", url) for word in command if word != "&"]
            if command[-1] == "&":
                port = own.index("--port") + 1
                asked_once([*own[:port], "0", *own[port + 1 :]], tmp_path)
                continue
            done = patchwright(*own, cwd=tmp_path)
            assert done.returncode == 0, (command, done.stderr)
            shown += done.stdout
    assert len(model.bodies) == 1, "the API was asked through the gateway"
    assert "1 turns" in shown
    assert "counted by the API" in patchwright("show", "runs/api", "session", cwd=tmp_path).stdout
