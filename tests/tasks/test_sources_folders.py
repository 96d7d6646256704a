"""Tasks that are folders: swebench 5's, Harbor's, Terminal-Bench's; Harbor's verdict in a real box."""

import dataclasses
import json

import pytest
from tests.boxes import in_boxes

from patchwright.errors import ConfigError
from patchwright.grade.tests import Grader
from patchwright.tasks.files import dump_tasks, load_tasks
from patchwright.tasks.sources import import_tasks

TOML = """version = "1.0"
[metadata]
difficulty = "easy"
released = 2024-05-01
[verifier]
timeout_sec = 60.0
[agent]
timeout_sec = 120.0
[environment]
memory_mb = 1024
"""
TEST_SH = """#!/bin/bash
cp /tests/expected.bin /tmp/expected
if [ "$(cat /app/answer.txt)" = 42 ] && [ -s /tmp/expected ]; then echo 1 > /logs/verifier/reward.txt
else echo 0 > /logs/verifier/reward.txt; fi
"""
FIX = (
    "diff --git a/answer.txt b/answer.txt\nnew file mode 100644\n--- /dev/null\n+++ b/answer.txt\n"
    "@@ -0,0 +1 @@\n+42\n"
)


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)


def harbor(folder):
    write(
        folder,
        {
            "task.toml": TOML,
            "instruction.md": "Write 42 to answer.txt.",
            "environment/Dockerfile": "FROM debian\nWORKDIR /old\nWORKDIR /app\n",
            "tests/test.sh": TEST_SH,
            "tests/expected.bin": b"\xff\x00\x01",
            "solution/solve.sh": "echo 42 > /app/answer.txt\n",
        },
    )


def test_a_harbor_task_rewards_what_its_script_rewards(tmp_path):
    harbor(tmp_path / "set" / "answer-it")
    [task] = import_tasks(str(tmp_path / "set")).tasks
    assert task.id == "answer-it" and task.workdir == "/app"
    assert task.image == "localhost/patchwright/answer-it:latest"
    assert (task.limits.test_seconds, task.limits.attempt_seconds, task.limits.memory_mb) == (60, 120, 1024)
    assert task.meta["row"]["config"]["metadata"] == {"difficulty": "easy", "released": "2024-05-01"}
    dump_tasks(tmp_path / "t.jsonl", [task])
    assert load_tasks(tmp_path / "t.jsonl") == [task]
    assert [grade(task, patch) for patch in (FIX, FIX.replace("+42", "+41"))] == [True, False]


def test_a_terminal_bench_task_passes_when_its_script_does(tmp_path):
    write(
        tmp_path / "hello",
        {
            "task.yaml": "instruction: Write 42.\ndifficulty: easy\nmax_test_timeout_sec: 30\n",
            "Dockerfile": "FROM debian\n",
            "run-tests.sh": "grep -q 42 answer.txt\n",
            "tests/test_outputs.py": "def test(): pass\n",
            "solution.sh": "echo 42 > answer.txt\n",
        },
    )
    [task] = import_tasks(str(tmp_path / "hello")).tasks
    assert task.meta["kind"] == "terminal-bench" and task.prompt == "Write 42."
    assert task.limits.test_seconds == 30 and task.workdir == "/app"
    assert [grade(task, patch) for patch in (FIX, "")] == [True, False]


def grade(task, patch):
    """On this machine's own system, whose root a box cannot write to as it could an image's."""

    def elsewhere(text):
        return text.replace("/tests", "/tmp/tests").replace("/logs", "/tmp/logs")

    tests = dataclasses.replace(
        task.tests,
        command=elsewhere(task.tests.command),
        files={name: elsewhere(content) for name, content in task.tests.files.items()},
    )
    task = dataclasses.replace(task, image="host", files={"README": "here\n"}, tests=tests)

    async def main(backend):
        return (await Grader(backend)(task, patch)).resolved

    return in_boxes(main)


def test_the_folders_of_swebench_5_are_rows_of_swe_bench(tmp_path):
    files = {
        "task.yaml": "instance_id: django__django-1\nrepo: django/django\nversion: '4.2'\n"
        "base_commit: c0ffee\nimage: swebench/sweb.eval.x86_64.django_1776_django-1\n"
        "log_parser: parse_log_django\n",
        "tests.json": json.dumps({"FAIL_TO_PASS": ["a (b)"], "PASS_TO_PASS": []}),
        "problem_statement.md": "Mend.\n",
        "gold.patch": "diff\r\n",
        "test.patch": "",
        "eval.sh": ": '>>>>> Start Test Output'\n",
        "Dockerfile": "FROM x\n",
    }
    write(tmp_path / "tasks" / "django__django-1", files)
    write(
        tmp_path / "tasks" / "django__django-2",
        {**files, "task.yaml": files["task.yaml"].replace("-1", "-2")},
    )
    tasks = import_tasks(str(tmp_path)).tasks
    assert [task.id for task in tasks] == ["django__django-1", "django__django-2"]
    assert tasks[0].solution == "diff\r\n" and tasks[0].tests.fail_to_pass == ("a (b)",)
    assert tasks[0].image.startswith("swebench/sweb.eval") and tasks[0].tests.parser == "parse_log_django"
    (tmp_path / "tasks" / "django__django-2" / "gold.patch").unlink()
    with pytest.raises(ConfigError, match=r"gold.patch is missing; the folder is no whole task"):
        import_tasks(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("task.toml", "x", "task.toml is not TOML"),
        ("tests/test.sh", None, "has no test.sh; it is what grades the task"),
        ("instruction.md", b"\xff", "instruction.md is not UTF-8"),
    ],
)
def test_a_harbor_folder_that_is_no_task_is_named(tmp_path, name, content, message):
    harbor(tmp_path / "a")
    if content is None:
        (tmp_path / "a" / name).unlink()
    else:
        write(tmp_path / "a", {name: content})
    with pytest.raises(ConfigError, match=message):
        import_tasks(str(tmp_path))


def test_test_files_are_never_read_through_links(tmp_path):
    harbor(tmp_path / "a")
    (tmp_path / "a" / "tests" / "link").symlink_to("/etc/passwd")
    [task] = import_tasks(str(tmp_path / "a")).tasks
    assert not any("link" in name for name in task.tests.files)
