"""`patchwright eval` from the outside: files, slices, prices, kill and resume, mistakes."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.recipes.chat_endpoint import serving, tasks

from patchwright.cli.app import app
from patchwright.errors import ConfigError
from patchwright.recipes.artefacts import keep_files
from patchwright.recipes.assembly import LineConfig
from patchwright.recipes.progress import View
from patchwright.recipes.seed_files import attempt_folder
from patchwright.recipes.sft import SftConfig, run_sft
from patchwright.recipes.show import show_trajectory
from patchwright.store import Run
from patchwright.tasks.files import dump_tasks

PROGRAM = [sys.executable, "-m", "patchwright.cli", "eval"]


@pytest.fixture
def endpoint():
    with serving() as (url, model):
        yield url, model


def start(folder: Path, url: str, *words: str) -> subprocess.Popen[str]:
    command = [
        *PROGRAM,
        "--tasks",
        "tasks.jsonl",
        "--base-url",
        url,
        "--model",
        "m-1",
        "--run",
        "run",
        *words,
    ]
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"COLUMNS": "200", "NO_COLOR": "1"},
    )  # fmt: skip


def evaluate(folder: Path, url: str, *words: str) -> tuple[int, str, str]:
    process = start(folder, url, *words)
    out, err = process.communicate(timeout=600)
    print(out, err)
    return process.returncode, out, err


def lines(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_an_evaluation_leaves_the_files_and_figures_it_promises(tmp_path: Path, endpoint):
    url, model = endpoint
    good, bad, cheat = tasks("good", "bad", "cheat")
    dump_tasks(tmp_path / "tasks.jsonl", [good, replace(bad, trust="broken"), cheat])
    (tmp_path / "prices.toml").write_text('[models."m-1"]\ninput = 1000.0\ncached = 0\noutput = 0\n')
    code, out, err = evaluate(tmp_path, url, "-n", "2", "--prices", "prices.toml", "--temperature", "0.25")
    assert code == 0 and "2/6" in out and "pass@2  33.3%" in out and "exits  submitted 6" in out
    assert {body["temperature"] for body in model.bodies} == {0.25}
    assert {body["model"] for body in model.bodies} == {"m-1"}

    run = tmp_path / "run"
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["total"], summary["resolved"], summary["errors"], summary["no_patch"]) == (6, 2, 0, 2)
    assert summary["trust"] == {"broken": 1, "none": 2} and "of 3 tasks 1 broken" in err
    assert summary["avg_steps"] == 2 and summary["args"]["model"] == "m-1"
    assert summary["tokens"] == {"input": 1200, "cached": 720, "output": 120}
    assert summary["cost"] == pytest.approx(0.48)
    assert summary["rate"]["mean"] == pytest.approx(1 / 3)

    results = lines(run / "results.jsonl")
    assert Counter((row["instance_id"], row["resolved"]) for row in results) == {
        ("good-0", True): 2, ("bad-1", False): 2, ("cheat-2", False): 2
    }  # fmt: skip
    for row in results:
        folder = run / row["run_dir"]
        told = json.loads((folder / "traj.json").read_text())
        assert told["info"]["exit_status"] == "submitted" and told["info"]["reward"] == int(row["resolved"])
        assert [step["returncode"] for step in told["step_debug"]] == [0, 0]
        assert [message["role"] for message in told["messages"]][:3] == ["system", "user", "assistant"]
        assert json.loads((folder / "meta.json").read_text())["instance_id"] == row["instance_id"]
        assert (folder / "patch.diff").exists() == (row["patch_source"] is not None)
    assert "x * 2" in (run / "good-0__1" / "patch.diff").read_text()


def test_predictions_are_graded_alike_by_the_grade_command(tmp_path: Path, endpoint):
    dump_tasks(tmp_path / "tasks.jsonl", tasks("good", "bad"))
    assert evaluate(tmp_path, endpoint[0], "-n", "1")[0] == 0
    file = tmp_path / "run" / "predictions-0.jsonl"
    assert {row["model_name_or_path"] for row in lines(file)} == {"m-1"}
    grade = [*PROGRAM[:-1], "grade", str(file), "--tasks", "tasks.jsonl", "--run", "graded", "--json"]
    done = subprocess.run(grade, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["resolved_ids"] == ["good-0"]


def test_slices_of_a_file_add_up_and_nothing_is_attempted_twice(tmp_path: Path, endpoint):
    url, model = endpoint
    dump_tasks(tmp_path / "tasks.jsonl", tasks(*["good"] * 4))
    assert evaluate(tmp_path, url, "-n", "1", "--slice", "1:3")[0] == 0
    assert [row["instance_id"] for row in lines(tmp_path / "run" / "results.jsonl")] == ["good-1", "good-2"]
    asked = len(model.bodies)
    code, out, _ = evaluate(tmp_path, url, "-n", "2")
    assert code == 0 and "8/8" in out
    assert len(model.bodies) == asked + 6 * 2, "two attempts were there"
    code, out, _ = evaluate(tmp_path, url, "-n", "2", "--json")
    assert json.loads(out)["resolved"] == 8 and len(model.bodies) == asked + 6 * 2


def test_killed_at_any_moment_it_goes_on_and_loses_nothing(tmp_path: Path, endpoint):
    url, model = endpoint
    dump_tasks(tmp_path / "tasks.jsonl", tasks(*["good", "bad"] * 4))
    process = start(tmp_path, url, "-n", "1", "--concurrency", "2")
    deadline = time.monotonic() + 300
    while (
        len(list((tmp_path / "run").glob("*__0/meta.json"))) < 2
        and time.monotonic() < deadline
        and process.poll() is None
    ):
        time.sleep(0.02)
    model.slow.clear()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    model.slow.set()
    kept = stored(tmp_path / "run")
    assert kept >= 2
    for folder in (tmp_path / "run").glob("*__0"):
        (folder / "meta.json").unlink(missing_ok=True)  # as if killed before it was written
    code, out, err = evaluate(tmp_path, url, "-n", "1", "--concurrency", "4")
    assert code == 0 and "4/8" in out, err
    assert len(lines(tmp_path / "run" / "results.jsonl")) == 8
    assert len(list((tmp_path / "run").glob("*__0/meta.json"))) == 8


def stored(run: Path) -> int:
    if not (run / "run.db").exists():
        return 0
    with Run.open(run) as opened:
        return len(opened.entries(stage="eval"))


def test_a_model_nobody_reaches_is_void_and_tried_again_by_the_same_command(tmp_path: Path, endpoint):
    url, model = endpoint
    dump_tasks(tmp_path / "tasks.jsonl", tasks("good"))
    model.status = 401
    code, out, _ = evaluate(tmp_path, url, "-n", "1", "-s", "line.retries=0")
    assert code == 1 and "void  EngineError (agent)" in out and "check its address, its key" in out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rate"] is None
    assert not (tmp_path / "run" / "predictions-0.jsonl").exists()
    model.status = 200
    code, out, _ = evaluate(tmp_path, url, "-n", "1", "-s", "line.retries=1")
    assert code == 0 and "1/1" in out


PROGRAM_IN_BOX = """
import json, os, urllib.error, urllib.request
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
head = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
ask = {"model": "x", "messages": [{"role": "user", "content": open(os.environ["TASK_FILE"]).read()}]}
code = open("mod.py").read().replace("x + 2", "x * 2")
open("mod.py", "w").write(code)
while True:
    try:
        said = json.load(urllib.request.urlopen(urllib.request.Request(url, json.dumps(ask).encode(), head)))
    except urllib.error.HTTPError as stop:
        raise SystemExit(0 if stop.code == 404 else 1)
    ask["messages"] += [said["choices"][0]["message"], {"role": "user", "content": "and?"}]
"""


def test_any_program_works_against_an_api_recorded_and_bounded_and_is_not_trained_on(
    tmp_path: Path, endpoint
):
    url, model = endpoint
    dump_tasks(tmp_path / "tasks.jsonl", tasks("good"))
    (tmp_path / "program.toml").write_text(
        '[line.agent]\nuse = "command"\nmax_turns = 3\n[line.agent.harness]\n'
        f"command = {json.dumps('python3 -c ' + shlex.quote(PROGRAM_IN_BOX))}\n"
        f'[line.engine]\nuse = "openai"\nurl = "{url}"\nkey_env = "THEIR_KEY"\n'
    )
    command = [*PROGRAM, "--tasks", "tasks.jsonl", "--model", "m-1", "--run", "run", "-n", "1"]
    command += ["--config", "program.toml"]
    env = os.environ | {"THEIR_KEY": "secret", "COLUMNS": "200"}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=env)
    assert done.returncode == 0 and "1/1" in done.stdout, done.stderr
    assert [len(body["messages"]) for body in model.bodies] == [1, 3, 5]
    assert model.keys == {"Bearer secret"} and {body["model"] for body in model.bodies} == {"m-1"}
    (row,) = lines(tmp_path / "run" / "results.jsonl")
    assert (row["exit_status"], row["n_steps"]) == ("budget", 3)
    assert row["tokens"] == {"input": 300, "cached": 180, "output": 30}
    told = json.loads((tmp_path / "run" / row["run_dir"] / "traj.json").read_text())
    assert [message["role"] for message in told["messages"]] == ["user", "assistant"] * 3

    with Run.open(tmp_path / "run") as run:
        (kept,) = run.trajectories()
        assert [turn.parent for turn in kept.turns] == [None, 0, 1]
        assert not any(turn.train or turn.completion_ids for turn in kept.turns)
        shown = Console(file=io.StringIO(), width=200)
        show_trajectory(run, kept.id, shown)
    assert (
        "3 turns, 300 prompt tokens, 30 sampled tokens (counted by the API; none can" in shown.file.getvalue()
    )
    with pytest.raises(ConfigError, match="was made with an API, which gives text and no tokens"):
        sft = run_sft(SftConfig(), LineConfig(), tmp_path, tmp_path / "run", tmp_path / "sft", View())
        asyncio.run(sft)


def test_rl_refuses_an_api(tmp_path: Path):
    dump_tasks(tmp_path / "tasks.jsonl", tasks("good"))
    engine = ["-s", "line.engine.use=openai", "-s", "line.engine.url=http://127.0.0.1:9/v1"]
    where = ["--tasks", str(tmp_path / "tasks.jsonl"), "--run", str(tmp_path / "run")]
    with pytest.raises(ConfigError, match="an API gives text and no tokens, so nothing can be trained on it"):
        app(["train", "rl", *where, "--model", "m-1", *engine], standalone_mode=False)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--slice", "7:"), "`--slice 7:` leaves none of the 1 tasks"),
        (("--agent", "bsh"), "`line.agent.use` is 'bsh'"),
        (("--preset", "swerl"), "did you mean `swe-rl`"),
        (("--prices", "none.toml"), "there is no config file none.toml"),
        (("-s", "line.agent.context.use=tail"), "`context.use` is 'tail'"),
        (("-s", "line.agent.instance={{ task.promt }}"), "did you mean `task.prompt`"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_starts(tmp_path: Path, words, sentence):
    dump_tasks(tmp_path / "tasks.jsonl", tasks("good"))
    where = ["--tasks", str(tmp_path / "tasks.jsonl"), "--run", str(tmp_path / "run")]
    endpoint = ["--base-url", "http://127.0.0.1:9/v1", "--model", "m-1"]
    with pytest.raises(ConfigError) as caught:
        app(["eval", *where, *endpoint, *words], standalone_mode=False)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_rollout_takes_agent_preset_and_attempts_as_eval_does(tmp_path: Path, endpoint):
    url, _ = endpoint
    dump_tasks(tmp_path / "tasks.jsonl", tasks("good"))
    where = ["--tasks", str(tmp_path / "tasks.jsonl"), "--run", str(tmp_path / "run")]
    how = ["--agent", "tools", "--preset", "swe-rl", "-n", "2", "-s", "line.agent.max_turns=2"]
    app(["rollout", *where, "--base-url", url, "--model", "m-1", *how], standalone_mode=False)
    with Run.open(tmp_path / "run") as run:
        agent = run.config["line"]["agent"]
        assert (agent["use"], agent["exec_timeout"], agent["max_turns"]) == ("tools", 180, 2)
        assert len(run.entries(stage="rollout")) == 2


def test_hostile_ids_stay_in_the_run_folder(tmp_path: Path):
    for name in ("../../x", "/etc/x", "..", ".", "", "a/b", "é\x00", "x" * 40):
        folder = attempt_folder(tmp_path, name, 0)
        assert folder.parent == tmp_path and folder.name.endswith("__0") and not folder.name.startswith(".")


def test_what_an_agent_leaves_is_kept_beside_its_attempt(tmp_path: Path):
    keep_files(tmp_path / "artefacts", {".agent/events.jsonl": b"\xff", "../x": b"y"})
    keep_files(tmp_path / "artefacts", {".agent/events.jsonl": b"new"})
    found = {file.name: file.read_bytes() for file in (tmp_path / "artefacts").iterdir()}
    assert found == {"%2Eagent%2Fevents.jsonl": b"new", "%2E.%2Fx": b"y"}
