"""docs/scale.md has the tables that the code makes, and `bench scale` prints one."""

import json
import subprocess
import sys
from pathlib import Path

from patchwright.recipes.scale_tables import fill

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"


def test_the_page_has_the_tables_as_they_are():
    page = PAGE.read_text(encoding="utf-8")
    for name in ("trainer", "engine", "fleet"):
        assert f"<!-- {name} -->\n|" in page
    assert fill(page) == page, "run `python -m patchwright.recipes.scale_tables docs/scale.md`"


def test_the_command_simulates_what_is_asked_for():
    words = ["bench", "scale", "--seconds", "5", "-s", "boxes=100", "-s", "nodes=4", "-s", "think=1"]
    run = [sys.executable, "-m", "patchwright.cli", *words]
    done = subprocess.run([*run, "--json"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["site"]["boxes"] == 100 and 10 < found["load"]["commands"] < 100
    done = subprocess.run(run, capture_output=True, text=True, timeout=60)
    assert "100 boxes on 4 nodes" in done.stdout and "busiest" in done.stdout
    done = subprocess.run([*run, "-s", "boxs=1"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (
        2,
        "error: unknown key `boxs` in `-s boxs=1`; did you mean `boxes`?\n",
    )
