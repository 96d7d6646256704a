"""`patchwright compare --against`: whether two kinds of runs differ."""

import json
from pathlib import Path
from statistics import fmean
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from patchwright.cli.app import app
from patchwright.errors import ConfigError
from patchwright.metrics import Metrics
from patchwright.metrics.mean import difference
from patchwright.recipes.contrast import contrast, contrast_report
from patchwright.store import Run

THESE, OTHERS = (0.348, 0.217, 0.31), (0.30, 0.28)


def runs(folder: Path, kind: str, after: tuple[float, ...], name: str = "held_out") -> list[Path]:
    """Runs that went from 10 % to `after`, by three rounds each."""
    made = []
    for number, rate in enumerate(after):
        path = folder / f"{kind}{number}"
        with Run.create_or_open(path, {"kind": kind, "seed": number}) as run:
            for policy, mean in (("sft", 0.1), ("rl", rate)):
                found = {"pass_at_1": mean, "low": mean / 2, "high": min(1, mean * 2), "total": 480}
                run.mark(f"eval-{policy}", 0, sets={name: found})
        for step in (1, 2, 3):
            Metrics(path / "metrics.jsonl").write("rl", step, resolve_rate=rate / 4 * step)
        made.append(path)
    return made


@pytest.fixture
def kinds(tmp_path: Path) -> tuple[list[Path], list[Path]]:
    return runs(tmp_path, "cut", THESE), runs(tmp_path, "sync", OTHERS)


def test_rates_gains_and_rounds_are_set_against_each_other(kinds):
    found = contrast(*kinds)
    apart = fmean(THESE) - fmean(OTHERS)
    assert found.rates("held_out")["rl"].apart == difference(THESE, OTHERS)
    gain = found.gains("held_out")["rl - sft"]
    assert gain.these.mean == pytest.approx(fmean(THESE) - 0.1)
    assert gain.apart.mean == pytest.approx(apart)
    assert [row.apart.mean for row in found.rounds()["rl"]] == pytest.approx(
        [apart / 4 * step for step in (1, 2, 3)]
    )


def test_the_report_has_the_difference_and_both_curves(kinds):
    texts = contrast_report(contrast(*kinds))
    record = json.loads(texts["compare.json"])
    assert record["these"]["runs"] == ["cut0", "cut1", "cut2"] and record["against"]["runs"][1] == "sync1"
    told = difference(THESE, OTHERS)
    assert record["difference"]["sets"]["held_out"]["rate"]["rl"] == told.record()
    assert f"| {told.points()} |" in texts["compare.md"] and "| cut2 |" in texts["compare.md"]
    names = [node.text or "" for node in ElementTree.fromstring(texts["rounds.svg"]).iter()]
    assert any(name.startswith("rl ") for name in names)
    assert any(name.startswith("against: rl ") for name in names)


def test_what_cannot_be_set_against_each_other_is_refused(kinds, tmp_path):
    these, others = kinds
    with pytest.raises(ConfigError, match="two runs of each kind"):
        contrast(these, others[:1])
    with pytest.raises(ConfigError, match=r"cut0 is of both kinds"):
        contrast(these, [*others, these[0]])
    with pytest.raises(ConfigError, match=r"no set of tasks in common \(held_out; mine\)"):
        contrast(these, runs(tmp_path, "other", OTHERS, name="mine"))


def test_the_command_prints_the_tables_or_json_and_writes_the_report(kinds, tmp_path):
    these, others = (list(map(str, kind)) for kind in kinds)
    against = [word for run in others for word in ("--against", run)]
    shown = CliRunner().invoke(app, ["compare", *these, *against, "--out", str(tmp_path / "report")])
    assert shown.exit_code == 0, shown.output
    assert difference(THESE, OTHERS).points() in shown.output and "sync1" in shown.output
    assert sorted(path.name for path in (tmp_path / "report").iterdir()) == [
        "compare.json",
        "compare.md",
        "rounds.svg",
    ]
    printed = CliRunner().invoke(app, ["compare", *these, *against, "--json"])
    assert json.loads(printed.output) == json.loads((tmp_path / "report/compare.json").read_text())
