"""The commands of docs/tasks.md about data sets and choosing, run from top to bottom."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = {
    "pallets__flask-4992": "2.3",
    "pallets__flask-5014": "2.3",
    "sympy__sympy-24152": "1.12",
    "psf__requests-1": "2.31",
}
DIFF = "diff --git a/t.py b/t.py\n--- a/t.py\n+++ b/t.py\n@@ -1 +1 @@\n-a\n+b\n"


def made(name, version):
    return {
        "instance_id": name,
        "repo": name.rpartition("-")[0].replace("__", "/"),
        "version": version,
        "base_commit": f"c0ffee{len(name)}",
        "problem_statement": f"Mend {name}.",
        "patch": DIFF,
        "test_patch": DIFF,
        "FAIL_TO_PASS": '["t"]',
        "PASS_TO_PASS": "[]",
        "difficulty": "<15 min fix",
    }


def test_every_command_of_the_sections_on_data_sets_runs(tmp_path):
    rows = [made(name, version) for name, version in NAMES.items()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (ROOT / "docs" / "tasks.md").read_text()
    part = text[text.index("## From a data set") : text.index("## Specs")]
    lines = [
        line for block in re.findall(r"```bash\n(.*?)```", part, re.DOTALL) for line in block.splitlines()
    ]
    for line in lines:
        command = [sys.executable, "-m", "patchwright.cli", *shlex.split(line)[1:]]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr)
    assert len(lines) >= 14
    assert (tmp_path / "again.jsonl").read_text().count("\n") == len(rows)
    assert (tmp_path / "rows-again.jsonl").read_text() == (tmp_path / "rows.jsonl").read_text()
    for name in ("instance_ids.txt", "docker_images.txt", "verified_eval.jsonl"):
        assert (tmp_path / name).is_file()
