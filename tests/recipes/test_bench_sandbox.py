"""`patchwright bench sandbox` on real boxes."""

import json

from typer.testing import CliRunner

from patchwright.cli.app import app


def test_what_boxes_cost_is_measured():
    done = CliRunner().invoke(app, ["bench", "sandbox", "--rounds", "1", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    steps = {"create", "write", "exec", "pytest", "fork", "close", "100 forks"}
    assert found["milliseconds"].keys() == steps
    for figures in (*found["milliseconds"].values(), found["idle_megabytes"]):
        assert 0 < figures["p50"] <= figures["p95"] <= figures["p99"]
