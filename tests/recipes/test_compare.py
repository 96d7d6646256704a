"""`patchwright compare`: several runs side by side."""

import json
import math
import re
import shlex
from pathlib import Path
from statistics import fmean, stdev
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from patchwright.cli.app import app
from patchwright.errors import ConfigError
from patchwright.metrics import Metrics
from patchwright.recipes.compare import compare, markdown, report, write_report
from patchwright.store import Run

BEFORE, AFTER = (0.19, 0.104, 0.188), (0.348, 0.217, 0.31)


def finding(mean, void=0):
    return {
        "pass_at_1": mean,
        "low": mean / 2,
        "high": mean * 2,
        "total": 480,
        "void": void,
        "pass_at_8": 0.5,
    }


def leave(folder, number):
    """A run as the quickstart leaves it."""
    before, after = BEFORE[number % len(BEFORE)], AFTER[number % len(AFTER)]
    with Run.create_or_open(folder, {"seed": number}) as run:
        run.mark("eval-sft", 0, sets={"held_out": finding(before), "harder": finding(0.0)})
        run.mark("eval-rl", 0, sets={"held_out": finding(after, void=number), "harder": finding(0.0)})
    metrics = Metrics(folder / "metrics.jsonl")
    metrics.write("sft", 1, loss=1.0)
    for step in (1, 2, 3, 3):  # a round that was resumed is written twice
        metrics.write("rl", step, resolve_rate=0.1 * step + 0.01 * number)


@pytest.fixture
def runs(tmp_path):
    folders = [tmp_path / f"seed{number}" for number in range(3)]
    for number, folder in enumerate(folders):
        leave(folder, number)
    return folders


def test_means_over_runs_have_students_interval(runs):
    found = compare(runs)
    mean = found.means("held_out")["rl"]
    half = 4.303 * stdev(AFTER) / math.sqrt(3)
    assert mean.mean == pytest.approx(fmean(AFTER))
    assert (mean.low, mean.high) == pytest.approx((fmean(AFTER) - half, fmean(AFTER) + half))


def test_gains_are_paired_by_run(runs):
    gains = [after - before for before, after in zip(BEFORE, AFTER, strict=True)]
    gain = compare(runs).gains("held_out")["rl - sft"]
    assert gain.mean == pytest.approx(fmean(gains))
    assert gain.high - gain.mean == pytest.approx(4.303 * stdev(gains) / math.sqrt(3))


def test_the_rounds_of_training_are_read_once_each(runs):
    assert compare(runs).rounds == {
        "rl": [pytest.approx([0.1 + 0.01 * n, 0.2 + 0.01 * n, 0.3 + 0.01 * n]) for n in range(3)]
    }


def test_the_report_holds_what_was_found(runs, tmp_path):
    found = compare(runs)
    paths = write_report(report(found), tmp_path / "new" / "report")
    assert [path.name for path in paths] == ["compare.json", "compare.md", "rounds.svg"]
    assert json.loads(paths[0].read_text()) == json.loads(json.dumps(found.record()))
    assert "| seed1 | 10.4% [5.2%, 20.8%] | 21.7% [10.8%, 43.4%] | +11.3 |" in markdown(found)
    root = ElementTree.fromstring(paths[2].read_text())
    assert any((node.text or "").startswith("rl 31.0%") for node in root.iter())


def test_runs_without_anything_in_common_are_refused(runs, tmp_path):
    other = tmp_path / "other"
    with Run.create_or_open(other, {}) as run:
        run.mark("eval-best", 0, sets={"mine": finding(0.5)})
    with pytest.raises(ConfigError, match=r"no evaluation in common \(seed0: sft on held_out.*other: best"):
        compare([runs[0], other])
    with pytest.raises(ConfigError, match="named twice"):
        compare([runs[0], runs[0]])


def test_the_command_prints_a_table_or_json(runs):
    shown = CliRunner().invoke(app, ["compare", *map(str, runs)])
    assert shown.exit_code == 0 and "seed2" in shown.output
    printed = CliRunner().invoke(app, ["compare", *map(str, runs), "--json"])
    assert json.loads(printed.output)["runs"] == ["seed0", "seed1", "seed2"]


RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_the_page_of_results_holds_what_its_commands_wrote(tmp_path, monkeypatch):
    page = (RESULTS / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL):
        *made, last = [shlex.split(line)[1:] for line in block.replace("\\\n", "").splitlines()]
        for number, command in enumerate(made):
            assert command[:2] == ["quickstart", "--run"]
            leave(tmp_path / command[2], number)
        assert CliRunner().invoke(app, last).exit_code == 0
    written = [
        path.relative_to(tmp_path / "docs/results") for path in sorted(tmp_path.glob("docs/results/*/*"))
    ]
    assert written == [path.relative_to(RESULTS) for path in sorted(RESULTS.glob("*/*"))]
    for tables in RESULTS.glob("*/compare.md"):
        assert tables.read_text().strip() in page
