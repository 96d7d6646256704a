"""`patchwright bench fleet`, ours beside another pool that knows nothing but swe-rl's protocol."""

import json
import subprocess

from tests.fleet.pool_processes import PATCHWRIGHT, Server

SMALL = ("--rounds=2", "--leases=3", "--commands=2", "--simulated-nodes=4", "--simulated-leases=20")


def bench(*options):
    command = [PATCHWRIGHT, "bench", "fleet", *SMALL, *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_ours_and_another_are_measured_side_by_side(tmp_path):
    node = Server(tmp_path, "node", "serve", "--port", 0, "--open")
    other = Server(tmp_path, "pool", "serve", "--port", 0, "--open", "--node", node.url)
    done = bench("--url", other.url, "--json", tmp_path / "fleet.json")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "fleet.json").read_text())
    assert [fleet["name"] for fleet in report["fleets"]] == ["patchwright", other.url]
    for fleet in report["fleets"]:
        assert fleet["exec_pool"]["count"] == 10 and fleet["allocate"]["count"] == fleet["fork"]["count"] == 2
        assert fleet["allocate"]["p50"] > 0 and fleet["pool_per_second"] > 0 < fleet["direct_per_second"]
        assert fleet["boxes_left"] == fleet["leases_left"] == 0
    pool = report["pool"]
    assert pool["allocate"]["count"] == 40 and pool["lost"] == pool["boxes_left"] == pool["leases_left"] == 0
    assert report["machine"]["cores"] >= 1 and report["machine"]["processor"] in done.stdout
    for server in (other, node):
        server.stop()
        server.process.stderr.close()


def test_what_cannot_be_done_is_said(tmp_path):
    done = bench("--json", tmp_path / "none" / "fleet.json")
    assert done.returncode == 2 and "name another file" in done.stderr
    done = bench("--image", "no/such:image")
    assert done.returncode == 1 and done.stderr.count("\n") <= 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ") and "no/such:image" in done.stderr
