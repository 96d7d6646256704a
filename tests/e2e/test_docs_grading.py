"""Every command of docs/grading.md, run on tasks and predictions of the formats it names."""

import json
from dataclasses import replace

import pytest
from tests.e2e.conftest import patchwright
from tests.e2e.test_docs import commands
from tests.grade.test_grader import FIX, TASK

from patchwright.tasks.files import dump_tasks

pytestmark = pytest.mark.e2e


def test_the_grading_page_runs_from_top_to_bottom(tmp_path):
    dump_tasks(tmp_path / "tasks.jsonl", [TASK, replace(TASK, id="second")])
    row = {"instance_id": TASK.id, "model_patch": FIX, "model_name_or_path": "m"}
    (tmp_path / "predictions.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "preds.json").write_text(json.dumps({TASK.id: row}))
    conftest = (
        "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n"
    )
    cheat = {**row, "model_patch": f"{FIX}{conftest}@@ -0,0 +1 @@\n+collect_ignore = []\n"}
    (tmp_path / "cheats.jsonl").write_text(json.dumps(cheat) + "\n")
    hands = [{"instance_id": name, "test_result": {"git_patch": FIX}} for name in (TASK.id, "unknown")]
    (tmp_path / "output.jsonl").write_text("".join(json.dumps(row) + "\n" for row in hands))
    for command in commands("docs/grading.md"):
        done = patchwright(*command, cwd=tmp_path)
        assert done.returncode == 0, (command, done.stderr)
    found = {
        run.name: json.loads((run / "summary.json").read_text()) for run in (tmp_path / "runs").iterdir()
    }
    rates = {name: summary["resolved_rate"]["mean"] for name, summary in found.items()}
    assert rates == {"gold": 1.0, "empty": 0.0, "grade": 1.0, "mini": 1.0, "openhands": 1.0, "cheats": 1.0}
    assert {name for name, summary in found.items() if summary["cheat_rate"]} == {"cheats"}
