"""The commands of docs/tasks.md about making and validating tasks, run in order."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

from patchwright.tasks.files import load_tasks

PAGE = Path(__file__).parents[2] / "docs" / "tasks.md"


def test_the_commands_of_the_page_run(tmp_path):
    section = PAGE.read_text().partition("## Made from any library")[2]
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if " tasks mine " not in line]
    for line in lines[:2]:
        command = [sys.executable, "-m", "patchwright.cli", *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
    assert [line.split()[2] for line in lines[:2]] == ["synth", "validate"]
    tasks = load_tasks(tmp_path / "made/library.jsonl")
    assert len(tasks) == 3
    assert {task.trust for task in tasks[:1]} <= {"valid", "hackable"} and not any(t.trust for t in tasks[1:])
