"""Other people's files of attempts: a seed's traj.json, mini-swe-agent's, OpenHands' of both kinds."""

import json
from pathlib import Path

import pytest
from tests.view.shown import HOSTILE, ask, attempt

from patchwright.errors import ConfigError
from patchwright.recipes.seed_files import write_attempt
from patchwright.types import GradeState
from patchwright.view.foreign import read_attempt
from patchwright.view.shelf import open_shelf


def test_a_seeds_folder_of_attempts_is_opened(tmp_path: Path):
    for k, state in enumerate((GradeState.RESOLVED, GradeState.TESTS_FAILED, None)):
        write_attempt(tmp_path / f"toy__{k}", attempt("g", k, state), {})
    [answer] = ask(tmp_path, "/api/runs")
    stages = [run["stages"][0] for run in answer.json()["runs"]]
    assert [(one["resolved"], one["unresolved"], one["void"]) for one in stages] == [
        (1, 0, 0),
        (0, 1, 0),
        (0, 0, 1),
    ]
    [found] = ask(tmp_path / "toy__0", "/api/attempt?run=toy__0&id=g-0")
    told = found.json()
    assert told["steps"][0]["command"] == f"cat {HOSTILE}" and told["steps"][0]["code"] == 1
    assert dict(told["grade"]["tests"])["test_mod.py::b"] == "failed"
    assert told["messages"][4]["calls"][0]["name"] == HOSTILE


def test_a_mini_swe_agent_trajectory_is_opened(tmp_path: Path):
    row = {
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": [{"type": "text", "text": "Fix it"}]},
            {"role": "assistant", "content": "THOUGHT\n```bash\nls\n```", "extra": {"cost": 0}},
            {"role": "exit", "content": "diff --git a/x b/x"},
        ],
        "info": {"exit_status": "Submitted", "submission": "diff --git a/x b/x\n"},
        "trajectory_format": "mini-swe-agent-1",
        "instance_id": "django__django-1",
    }
    (tmp_path / "django__django-1.traj.json").write_text(json.dumps(row))
    listed, found = ask(
        tmp_path,
        "/api/runs",
        "/api/attempt?run=django__django-1.traj.json&id=django__django-1-0",
    )
    assert listed.json()["runs"][0]["kind"] == "file"
    told = found.json()
    assert told["exit"] == "Submitted" and told["patch"].startswith("diff")
    assert told["outcome"] == "ungraded" and [m["role"] for m in told["messages"]][-1] == "exit"


EVENTS = [
    {"id": 0, "source": "agent", "action": "system", "args": {"content": "You are OpenHands"}},
    {"id": 1, "source": "user", "action": "message", "args": {"content": "Fix it"}},
    {"id": 2, "source": "agent", "action": "run", "args": {"command": "ls", "thought": "Look."}},
    {
        "id": 3,
        "source": "agent",
        "observation": "run",
        "content": "mod.py",
        "extras": {"command": "ls", "metadata": {"exit_code": 2}},
    },
    {"id": 4, "source": "environment", "observation": "agent_state_changed", "content": ""},
    {"id": 5, "source": "agent", "action": "finish", "args": {"final_thought": "Done."}},
]
SDK = [
    {"kind": "SystemPromptEvent", "system_prompt": {"text": "You are OpenHands"}},
    {
        "kind": "MessageEvent",
        "source": "user",
        "llm_message": {"role": "user", "content": [{"text": "Fix it"}]},
    },
    {
        "kind": "ActionEvent",
        "thought": [{"text": "Look."}],
        "reasoning_content": "hm",
        "tool_name": "terminal",
        "action": {"kind": "TerminalAction", "command": "ls"},
    },
    {"kind": "ObservationEvent", "tool_name": "terminal", "observation": {"content": [{"text": "mod.py"}]}},
]


@pytest.mark.parametrize("history", [EVENTS, SDK, [EVENTS[2:4]]])
def test_openhands_output_is_opened(tmp_path: Path, history: list):
    rows = [
        {"instance_id": f"a__b-{k}", "history": history, "test_result": {"git_patch": "diff --git a/x b/x\n"}}
        for k in range(3)
    ]
    rows[1]["report"] = {"resolved": True}
    text = "\n".join(json.dumps(row) for row in rows)
    (tmp_path / "output.jsonl").write_text(text + "\n")
    listed, found = ask(
        tmp_path / "output.jsonl",
        "/api/attempts?run=output.jsonl&outcome=resolved",
        "/api/attempt?run=output.jsonl&id=a__b-2-2",
    )
    assert [row["id"] for row in listed.json()["rows"]] == ["a__b-1-1"]
    told = found.json()
    calls = [call for message in told["messages"] for call in message["calls"]]
    assert json.loads(calls[0]["arguments"]) == {"command": "ls"}
    assert "Look." in [message["content"] for message in told["messages"]]
    assert "mod.py" in [message["content"] for message in told["messages"] if message["role"] == "tool"]
    assert told["patch"].startswith("diff")
    if history is not SDK:
        assert told["steps"][0]["command"] == "ls" and told["steps"][0]["code"] in (0, 2)


def test_attempts_nobody_graded_are_counted_apart_from_void_ones(tmp_path: Path):
    told: list[dict] = [{}, {"resolved": True}, {"error": "the box is gone"}, {}]
    said = {"messages": [{"role": "user", "content": "hi"}]}
    (tmp_path / "output.jsonl").write_text("".join(json.dumps({**said, **one}) + "\n" for one in told))
    runs, listed, found, tasks = ask(
        tmp_path,
        "/api/runs",
        "/api/attempts?run=output.jsonl&outcome=ungraded&order=-id",
        "/api/attempt?run=output.jsonl&id=row-3-3",
        "/api/tasks?run=output.jsonl&order=-ungraded",
    )
    [stage] = runs.json()["runs"][0]["stages"]
    assert [stage[word] for word in ("resolved", "unresolved", "void", "ungraded")] == [1, 0, 1, 2]
    assert stage["attempts"] == 4 and stage["rate"] == 1.0
    assert [row["id"] for row in listed.json()["rows"]] == ["row-3-3", "row-0-0"]
    assert found.json()["outcome"] == "ungraded" and found.json()["task"] == "row-3"
    rows = {row["id"]: (row["attempts"], row["ungraded"], row["void"]) for row in tasks.json()["rows"]}
    assert rows["row-0"] == (1, 1, 0) and rows["row-2"] == (1, 0, 1)


def test_what_is_no_attempt_is_refused_in_a_sentence(tmp_path: Path):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "other.json").write_text('{"x": 1}')
    (tmp_path / "empty.jsonl").write_text("\n")
    for name, words in {
        "broken.json": "is not JSON",
        "list.json": "no object",
        "other.json": "no conversation",
        "empty.jsonl": "holds no attempts",
        "missing": "check the path",
    }.items():
        with pytest.raises(ConfigError, match=words):
            open_shelf([tmp_path / name])
    for number, row in enumerate(
        (
            {"step_debug": [{"action": "ls", "output_len": float("nan")}]},
            {"step_debug": [{"action": "ls", "output_len": float("inf")}]},
            {"info": {"eval_result": {"resolved": True, "findings": 5}}},
            {"info": {"eval_result": {"resolved": True, "tests": {"a": ["x"]}}}},
        )
    ):
        file = tmp_path / f"odd-{number}.json"
        file.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}], **row}))
        with pytest.raises(ConfigError, match="row 1 is no attempt that can be read"):
            open_shelf([file])
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="there is no run in"):
        open_shelf([tmp_path / "none"])


def test_rows_of_strange_types_do_not_break_the_reading():
    row = {
        "messages": [
            {"role": 3, "content": {"a": 1}},
            "x",
            {"role": "assistant", "tool_calls": [{"function": None}]},
        ],
        "info": {
            "exit_status": 7,
            "eval_result": {"resolved": False, "tests": {"t": "odd"}, "findings": None},
        },
        "step_debug": [{"action": "ls", "returncode": None, "output_len": "x"}, 5],
        "instance_id": ["x"],
    }
    found = read_attempt(row, "here", 4)
    assert found.task_id == "row-4" and found.grade is not None and not found.grade.resolved
    assert found.steps[0].command == "ls"
