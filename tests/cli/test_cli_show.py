"""`patchwright show`: legible, complete, and safe to print whatever a model wrote."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from patchwright.recipes.legible import cut, legible
from patchwright.recipes.show import show_run, show_trajectory
from patchwright.store import Run
from patchwright.types import Exec, Failure, Grade, GradeState, Step, TestStatus, Trajectory, Turn

HOSTILE = "\x1b[2J\x1b]0;owned\x07[red]not markup[/red] \u202e\ud800 \r\x00 end"
PATCH = "diff --git a/mod.py b/mod.py\n--- a/mod.py\n+++ b/mod.py\n@@ -1 +1 @@\n-x + 1\n+x + 2\n"


def printed(show, *arguments, **options) -> str:
    file = io.StringIO()
    show(*arguments, Console(file=file, width=200, markup=False, emoji=False, highlight=False), **options)
    return file.getvalue()


@pytest.fixture
def run(tmp_path: Path):
    turns = (
        Turn(id=0, prompt_ids=(1, 2, 3), completion_ids=(4, 5), logprobs=(-0.5, -1.5), text=HOSTILE),
        Turn(
            id=1,
            parent=0,
            prompt_ids=(6,),
            completion_ids=(7,),
            logprobs=(-1.0,),
            text="Title " + HOSTILE,
            train=False,
            drift=("side_call",),
        ),
    )
    messages = (
        {"role": "user", "content": "Fix mod.py: f(2) returns 3, expected 4."},
        {"role": "assistant", "content": HOSTILE},
        {"role": "user", "content": [{"type": "text", "text": "observation " + "y" * 9000}]},
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "bash"}}]},
    )
    grade = Grade(
        state=GradeState.TESTS_FAILED,
        tests={"t.py::a": TestStatus.PASSED, "t.py::b": TestStatus.FAILED},
        reason="1 of 2 tests fail",
        findings=("touched conftest.py",),
    )
    with Run.create_or_open(tmp_path / "demo", {"seed": 7, "rl": {"steps": 2}}) as opened:
        read = Trajectory(
            id="eval-0",
            task_id="toy-1",
            turns=turns,
            messages=messages,
            patch=PATCH,
            exit="submitted",
            grade=grade,
        )
        step = Step(command="cat " + HOSTILE, exec=Exec(code=124, output=HOSTILE, timed_out=True, omitted=5))
        void = Trajectory(
            id="rl-void",
            task_id="toy-2",
            steps=(step,),
            failure=Failure(kind="SandboxError", message="died", stage="agent"),
        )
        good = Trajectory(id="rl-good", task_id="toy-2", grade=Grade(state=GradeState.RESOLVED))
        opened.put(read, stage="eval-sft-held_out", step=0, version=4)
        opened.put_many([void, good], stage="rl", step=1, version=4)
        opened.seal("rl", 1)
        found = {
            "resolved": 3,
            "total": 4,
            "void": 1,
            "pass_at_1": 0.75,
            "low": 0.5,
            "high": 0.9,
            "pass_at_8": None,
            "cheat_rate": 0.125,
        }
        opened.mark("eval-sft", 0, version=4, seconds=1.5, sets={"held_out": found})
        opened.mark("rl", 1, resolve_rate=0.5, void=1, loss=0.123456)
        (opened.path / "weights" / "v4").mkdir(parents=True)
        (opened.path / "weights" / "v4" / "model.safetensors").write_bytes(bytes(2_500_000))
        yield opened


def test_a_run(run: Run) -> None:
    text = printed(show_run, run)
    rows = [line.split() for line in text.splitlines()]
    assert ["rl", "1", "2", "1", "0", "1", "100.0%"] in rows
    assert ["eval-sft", "held_out", "75.0%", "[50.0%,", "90.0%]", "-", "4", "1", "12.5%"] in rows
    assert ["1", "0.5", "1", "0.1235"] in rows
    assert "seed=7" in text and "(and rl: config.json)" in text
    assert "2.5 MB" in text and str(run.path / "weights") in text
    assert f"patchwright show {run.path} rl-good" in text


def test_a_run_without_marks_shows_its_summary(tmp_path: Path) -> None:
    with Run.create_or_open(tmp_path / "demo", {}) as run:
        assert "demo" in printed(show_run, run)
        found = {"name": "rollout", "total": 4, "void": 0, "pass_at_1": 0.25, "low": 0.1, "high": 0.4}
        run.write_summary({"stages": [found]})
        assert "25.0% [10.0%, 40.0%]" in printed(show_run, run)


def test_a_trajectory(run: Run) -> None:
    text = printed(show_trajectory, run, "eval-0")
    assert "eval-0  unresolved" in text and "stage eval-sft-held_out step 0, weights 4" in text
    assert "2 turns, 4 prompt tokens, 3 sampled tokens (28.6% of all tokens train)" in text
    assert "drift: side_call 1" in text and "0.0 s, side_call, not trained on" in text
    assert "assistant (turn 0: 2 tokens, mean log-prob -1.000, stop, 0.0 s)" in text
    aside = "turn 1: 1 tokens, mean log-prob -1.000, stop, 0.0 s, side_call, not trained on"
    assert f"not in this conversation ({aside})" in text and "Title " in text
    assert 'tool call {"name": "bash"}' in text
    assert "+x + 2" in text
    assert "passed  t.py::a" in text and "failed  t.py::b" in text and "1 of 2 tests fail" in text
    assert "finding: touched conftest.py" in text


def test_long_texts_are_cut_unless_full(run: Run) -> None:
    assert "characters left out" in printed(show_trajectory, run, "eval-0")
    full = printed(show_trajectory, run, "eval-0", full=True)
    assert "left out" not in full and full.count("y") > 9000


def test_a_void_attempt_without_messages_shows_its_commands(run: Run) -> None:
    text = printed(show_trajectory, run, "rl-void")
    assert "rl-void  void" in text and "void: SandboxError at agent: died" in text
    assert "command (timed out" in text and "(5 bytes of output were not kept)" in text


@pytest.mark.parametrize("name", ["eval-0", "rl-void"])
def test_hostile_text_cannot_drive_the_terminal(run: Run, name: str) -> None:
    text = printed(show_trajectory, run, name)
    assert not {"\x1b", "\x07", "\r", "\x00", "\u202e", "\ud800"} & set(text)
    assert r"\x1b[2J" in text and "[red]not markup[/red]" in text and r"\ud800" in text


def test_legible_keeps_what_people_write() -> None:
    text = "Zażółć gęślą jaźń\n\t日本語 — “quotes” ✓"
    assert legible(text) == text


def test_cut_keeps_head_and_tail() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefgh", 4) == "ab\n... 4 characters left out ...\ngh"
