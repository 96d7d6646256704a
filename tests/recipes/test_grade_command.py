"""`patchwright grade` from the outside: reports, resume, and being stopped in the middle."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tests.grade.test_grader import FIX, TASK

from patchwright.tasks.files import dump_tasks

PATCHWRIGHT = Path(sys.executable).with_name("patchwright")
WRONG = FIX.replace("x * 2", "x * 3")
CHEAT = FIX + (
    "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n"
    "@@ -0,0 +1 @@\n+x = 1\n"
)


def tasks(tmp_path: Path) -> Path:
    """Three tasks; the second one's environment is broken."""
    chosen = [
        replace(TASK, id="good-1", tests=replace(TASK.tests, protected=("**/conftest.py",))),
        replace(TASK, id="broken-2", setup=("exit 3",), trust="valid"),
        replace(TASK, id="odd/../3"),
    ]
    dump_tasks(tmp_path / "tasks.jsonl", chosen)
    return tmp_path / "tasks.jsonl"


def predictions(tmp_path: Path, *rows: tuple[str, str | None]) -> Path:
    text = "".join(json.dumps({"instance_id": name, "model_patch": patch}) + "\n" for name, patch in rows)
    (tmp_path / "preds.jsonl").write_text(text)
    return tmp_path / "preds.jsonl"


def grade(*words: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [PATCHWRIGHT, "grade", *map(str, words), "--workers", "2"]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    print(done.stdout, done.stderr)
    return done


def test_reports_summary_and_samples(tmp_path):
    rows = [("good-1", FIX), ("good-1", WRONG), ("good-1", CHEAT), ("broken-2", FIX), ("odd/../3", None)]
    file = predictions(tmp_path, *rows)
    done = grade(file, "--tasks", tasks(tmp_path), "--run", "run", "--json", cwd=tmp_path)
    assert done.returncode == 1  # one is void
    found = json.loads(done.stdout)
    assert found == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert found["total_instances"] == found["submitted_instances"] == 3
    assert found["resolved_ids"] == ["good-1"] and found["error_ids"] == ["broken-2"]
    assert found["empty_patch_ids"] == ["odd/../3"] and found["completed_instances"] == 1
    assert found["states"] == {"empty_patch": 1, "env_broken": 1, "resolved": 2, "tests_failed": 1}
    assert "setup" in found["void"]["env_broken"]["broken-2"]
    assert found["cheat_rate"] == 1 / 4 and found["findings"] == {"good-1": ["protected: conftest.py"]}
    assert found["resolved_rate"]["void"] == 1 and found["trust"] == {"none": 2, "valid": 1}

    folder = tmp_path / "run" / "good-1"
    reports = [json.loads((folder / name / "report.json").read_text())["good-1"] for name in "012"]
    assert [report["resolved"] for report in reports] == [True, False, True]
    assert reports[1]["tests_status"]["FAIL_TO_PASS"]["failure"] == ["test_mod.py::test_three"]
    assert "test_three" in (folder / "1" / "test_output.txt").read_text()
    assert (folder / "0" / "patch.diff").read_text() == FIX
    assert "pytest" in (folder / "0" / "eval.sh").read_text()
    assert json.loads((folder / "2" / "grade.json").read_text())["findings"] == ["protected: conftest.py"]
    void = tmp_path / "run" / "broken-2"
    assert not (void / "report.json").exists()
    assert json.loads((void / "grade.json").read_text())["state"] == "env_broken"
    assert (tmp_path / "run" / "odd%2F..%2F3" / "grade.json").exists()


def test_gold_and_empty(tmp_path):
    dump_tasks(tmp_path / "t.jsonl", [TASK])
    gold = grade("gold", "--tasks", "t.jsonl", "--run", "gold", cwd=tmp_path)
    empty = grade("empty", "--tasks", "t.jsonl", "--run", "empty", cwd=tmp_path)
    assert gold.returncode == empty.returncode == 0
    assert "resolved  100.0%" in gold.stdout and "1 empty_patch" in empty.stdout


@pytest.mark.parametrize(
    ("rows", "extra", "sentence"),
    [
        ([("good-2", FIX)], [], "did you mean 'good-1'?"),
        ([], [], "holds no predictions"),
        ([("good-1", FIX)], ["--set", "line.sandbox.use=nothing"], "nothing"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path, rows, extra, sentence):
    done = grade(predictions(tmp_path, *rows), "--tasks", tasks(tmp_path), *extra, cwd=tmp_path)
    assert done.returncode == 2 and sentence in done.stderr and done.stderr.count("\n") == 1


def test_missing_images_are_told_before_anything_runs(tmp_path):
    dump_tasks(tmp_path / "t.jsonl", [TASK, *(replace(TASK, id=f"i-{n}", image=f"o/i{n}") for n in range(7))])
    mine = ["-s", f"line.sandbox.images.store={tmp_path / 'store'}"]
    done = grade("gold", "--tasks", "t.jsonl", *mine, cwd=tmp_path)
    assert done.returncode == 2 and "docker.io/o/i0:latest" in done.stderr and "and 2 more" in done.stderr
    assert "images pull --tasks" in done.stderr and not (tmp_path / "runs").exists()
    one = predictions(tmp_path, (TASK.id, FIX))
    assert grade(one, "--tasks", "t.jsonl", *mine, cwd=tmp_path).returncode == 0


def test_unknown_ids_can_be_left_out_and_rules_are_checked_first(tmp_path):
    file = predictions(tmp_path, ("nobody", FIX), ("good-1", FIX))
    done = grade(file, "--tasks", tasks(tmp_path), "--skip-unknown", "--json", cwd=tmp_path)
    assert json.loads(done.stdout)["predictions"] == 1
    dump_tasks(tmp_path / "t.jsonl", [replace(TASK, tests=replace(TASK.tests, parser="nope"))])
    done = grade("gold", "--tasks", "t.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "nope" in done.stderr


def slow_set(tmp_path: Path, count: int) -> tuple[Path, Path]:
    """As many different patches, a second each; every run of tests leaves a line outside of its box."""
    dump_tasks(
        tmp_path / "tasks.jsonl",
        [replace(TASK, tests=replace(TASK.tests, command=f"sleep 0.7; {TASK.tests.command}"))],
    )
    rows = [(TASK.id, FIX.replace("x * 2", f"x * 2 + {number} * 0")) for number in range(count)]
    return tmp_path / "tasks.jsonl", predictions(tmp_path, *rows)


def finished(run: Path) -> list[str]:
    try:
        with sqlite3.connect(f"file:{run}/grades.db?mode=ro", uri=True, timeout=5) as base:
            return sorted(row[0] for row in base.execute("SELECT key FROM grades"))
    except sqlite3.OperationalError:
        return []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, how):
    file, rows = slow_set(tmp_path, 6)
    run = tmp_path / "run"
    words = [PATCHWRIGHT, "grade", rows, "--tasks", file, "--run", run, "--workers", "2"]
    first = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 300
    while len(finished(run)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(first.pid, how)
    _, said = first.communicate(timeout=600)
    assert first.returncode == (130 if how is signal.SIGINT else -9), said
    half = finished(run)
    assert 2 <= len(half) < 6

    before = {key: stamp(run, key) for key in half}
    done = grade(rows, "--tasks", file, "--run", run, "--json", cwd=tmp_path)
    assert done.returncode == 0 and json.loads(done.stdout)["states"] == {"resolved": 6}
    assert {key: stamp(run, key) for key in half} == before  # not graded again
    assert len(finished(run)) == 6
    assert len(list(run.glob("double/*/report.json"))) == 6


def stamp(run: Path, key: str) -> bytes:
    """A verdict as stored: its seconds differ from run to run."""
    with sqlite3.connect(run / "grades.db") as base:
        return base.execute("SELECT grading FROM grades WHERE key = ?", (key,)).fetchone()[0]


def test_two_runs_do_not_write_into_one_folder(tmp_path):
    file, rows = slow_set(tmp_path, 3)
    words = [PATCHWRIGHT, "grade", rows, "--tasks", file, "--run", tmp_path / "run", "--workers", "1"]
    first = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (tmp_path / "run" / "grades.db").exists():
        assert first.poll() is None
        time.sleep(0.05)
    first.send_signal(signal.SIGSTOP)  # at work as long as the second one looks
    second = grade(rows, "--tasks", file, "--run", tmp_path / "run", cwd=tmp_path)
    first.send_signal(signal.SIGCONT)
    assert second.returncode == 2 and "in use by process" in second.stderr
    assert first.wait(300) == 0
