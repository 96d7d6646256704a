"""The program as users start it: help, exit codes, one sentence per mistake."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from patchwright import __version__
from patchwright.cli.app import app

PROGRAM = [sys.executable, "-m", "patchwright.cli"]


def patchwright(*words: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    wide = os.environ | {"COLUMNS": "160", "NO_COLOR": "1"}
    return subprocess.run([*PROGRAM, *map(str, words)], capture_output=True, text=True, cwd=cwd, env=wide)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_help_is_light() -> None:
    code = (
        "import sys; sys.argv = ['patchwright', '--help']\n"
        "from patchwright.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'torch', 'transformers', 'pyarrow', 'renderers', 'pydantic', 'jinja2', 'starlette'}\n"
        "print('heavy:', sorted(heavy & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "quickstart" in done.stdout and "heavy: []" in done.stdout


def test_every_option_of_every_command_is_explained() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert {("quickstart",), ("train", "rl"), ("gateway", "serve"), ("check", "agent")} <= found.keys()
    for path, command in found.items():
        assert command.help, path
        for parameter in command.params:
            assert parameter.name == "help" or parameter.help, (path, parameter.name)


def test_version(tmp_path: Path) -> None:
    assert patchwright("--version", cwd=tmp_path).stdout == f"patchwright {__version__}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nonsense"], "No such command"),
        (["show"], "Missing argument"),
        (
            ["show", "nowhere"],
            "error: nowhere is not a run: it has no config.json and run.db; check the path\n",
        ),
        (["tasks", "list", "none.jsonl"], "error: there is no task file none.jsonl; check the path\n"),
        (
            ["quickstart", "-s", "rl.stpes=1"],
            "error: unknown key `rl.stpes` in `-s rl.stpes=1`; did you mean `rl.steps`?\n",
        ),
        (
            ["rollout", "--tasks", "t.jsonl", "--model", "m", "--expert", "--samples", "2"],
            "error: --expert makes one attempt per task, with the tokenizer of the folder --model\n",
        ),
        (["rollout", "--tasks", "t", "--expert"], "Missing option '--model'"),
        (
            ["eval", "--tasks", "t", "--config", "no.toml", "--model", "m"],
            "error: there is no config file no.toml",
        ),
    ],
)
def test_mistakes_exit_with_2_and_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    done = patchwright(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_broken_run_exits_with_1(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}")
    (tmp_path / "run" / "run.db").write_bytes(b"rubbish" * 300)
    done = patchwright("show", "run", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == "error: could not open the run in run: file is not a database\n"


def test_ctrl_c_closes_and_exits_with_130(tmp_path: Path) -> None:
    code = (
        "import asyncio, typer\n"
        "from patchwright.cli.options import execute\n"
        "async def work():\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        await asyncio.sleep(60)\n"
        "    finally:\n"
        "        print('closed', flush=True)\n"
        "typer.run(lambda: execute(work()))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (130, "closed\n", "interrupted; resume with the same command\n")


def test_tasks_are_made_listed_shown_and_validated(tmp_path: Path) -> None:
    counts = ["-s", "sft=4", "-s", "rl=3", "-s", "held_out=2", "-s", "harder=2", "-s", "seed=5"]
    made = patchwright("tasks", "synth", "composed", "t", *counts, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    rows = [json.loads(line) for line in (tmp_path / "t" / "rl.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    listed = patchwright("tasks", "list", "t/rl.jsonl", cwd=tmp_path).stdout
    assert all(row["id"] in listed for row in rows)
    shown = patchwright("tasks", "show", "t/rl.jsonl", rows[0]["id"], cwd=tmp_path).stdout
    assert rows[0]["prompt"][:40] in shown and "solution" in shown and "@@" in shown
    unknown = patchwright("tasks", "show", "t/rl.jsonl", rows[0]["id"][:-1], cwd=tmp_path)
    assert unknown.returncode == 2 and f"did you mean '{rows[0]['id']}'?" in unknown.stderr
    valid = patchwright("tasks", "validate", "t/rl.jsonl", "--first", "2", cwd=tmp_path)
    assert valid.returncode == 0 and valid.stdout.endswith("1 valid, 1 hackable\n"), valid.stderr
    trusted = [
        json.loads(line).get("trust") for line in (tmp_path / "t" / "rl.jsonl").read_text().splitlines()
    ]
    assert sorted(trusted[:2]) == ["hackable", "valid"] and trusted[2] is None
    spoilt = [row | {"solution": ""} for row in rows[:1]]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spoilt))
    bad = patchwright("tasks", "validate", "bad.jsonl", cwd=tmp_path)
    assert bad.returncode == 1 and bad.stdout.endswith("\n1 broken\n")


def test_doctor_names_every_mend(tmp_path: Path) -> None:
    done = patchwright("doctor", "--run", "deep/runs", cwd=tmp_path)
    lines = done.stdout.splitlines()
    bad = [index for index, line in enumerate(lines) if line.startswith(("FAIL", "-   "))]
    assert all("mend: " in lines[index + 1] for index in bad)
    blocked = any(line.startswith("FAIL") for line in lines)
    assert done.returncode == int(blocked)
    assert ("the quickstart cannot run" in lines[-1]) == blocked
    assert any(line.startswith("ok   boxes") for line in lines), done.stdout


def test_check_agent_passes_the_built_in_one(tmp_path: Path) -> None:
    done = patchwright("check", "agent", "bash", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok   fixes a toy bug and submits" in done.stdout and "0 failed" in done.stdout
    unknown = patchwright("check", "agent", "bahs", cwd=tmp_path)
    assert unknown.returncode == 2 and "did you mean `bash`?" in unknown.stderr


def test_a_recorded_session_can_be_read_back(tmp_path: Path) -> None:
    """`train new`, `gateway serve`, a plain HTTP client, SIGTERM, `show`."""
    import httpx

    counts = ["-s", "sft=0", "-s", "rl=2", "-s", "held_out=0", "-s", "harder=0"]
    assert patchwright("tasks", "synth", "composed", "t", *counts, cwd=tmp_path).returncode == 0
    new = patchwright("train", "new", "--tasks", "t/rl.jsonl", "--out", "m", cwd=tmp_path)
    assert new.returncode == 0, new.stderr
    options = ["--port", "0", "--session", "mine", "-s", "line.sampling.max_tokens=8"]
    with subprocess.Popen(
        [*PROGRAM, "gateway", "serve", "m", *options], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as server:
        assert server.stderr is not None
        told = dict(server.stderr.readline().split() for _ in range(3))
        body = {"model": told["model"], "messages": [{"role": "user", "content": "hello"}]}
        url = f"{told['base_url']}/chat/completions"
        key = {"authorization": f"Bearer {told['api_key']}"}
        assert httpx.post(url, json=body, timeout=60).status_code == 401
        assert httpx.post(url, json=body, headers=key, timeout=60).status_code == 200
        server.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 120
        assert "recorded 1 turns" in server.stderr.read() and time.monotonic() < deadline
    assert server.returncode == 0
    shown = patchwright("show", "runs/recorded", "mine", cwd=tmp_path).stdout
    assert "hello" in shown and "1 turns" in shown and "8 sampled tokens" in shown
    again = patchwright("gateway", "serve", "m", *options, cwd=tmp_path)
    assert again.returncode == 2 and "holds a session 'mine' already" in again.stderr
