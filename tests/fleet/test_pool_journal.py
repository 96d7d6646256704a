"""The journal, and that the death of its process loses nothing."""

import os
import signal
import subprocess
import sys

import pytest

from patchwright.errors import ConfigError
from patchwright.fleet.journal import Journal, LeaseRow, LeaseState

WRITER = """
import sys, time
from pathlib import Path
from patchwright.fleet.journal import Journal, LeaseRow, LeaseState
journal = Journal(Path(sys.argv[1]))
for number in range(1000000):
    journal.put(LeaseRow(lease_id=f"{number}", node="http://n", image="host", fence=journal.next_fence()))
    print(number, journal.next_fence(), flush=True)
"""


def test_leases_come_back_as_they_were(tmp_path):
    file = tmp_path / "deep" / "pool.db"
    journal = Journal(file)
    row = LeaseRow(
        lease_id="a", state=LeaseState.OPEN, node="http://n", container_id="c", image="i", token="t",
        fence=journal.next_fence(), ttl=2.5, key="k", spare=True,
    )  # fmt: skip
    journal.put(row)
    journal.put(LeaseRow(lease_id="b", node="http://n", image="i"))
    journal.remove("b")
    journal.add_node("http://late")
    journal.close()
    assert file.stat().st_mode & 0o777 == 0o600
    again = Journal(file)
    assert list(again.leases()) == [row] and again.nodes() == ["http://late"]
    assert again.next_fence() > row.fence


def test_only_one_pool_may_have_it(tmp_path):
    journal = Journal(tmp_path / "pool.db")
    with pytest.raises(ConfigError, match="another --journal"):
        Journal(tmp_path / "pool.db")
    journal.close()


def test_what_is_no_journal_is_refused(tmp_path):
    (tmp_path / "pool.db").write_text("these are no leases\n" * 100)
    with pytest.raises(ConfigError, match="cannot be opened"):
        Journal(tmp_path / "pool.db")


def test_nothing_is_lost_when_its_process_is_killed(tmp_path):
    file = tmp_path / "pool.db"
    writer = subprocess.Popen([sys.executable, "-c", WRITER, file], stdout=subprocess.PIPE, text=True)
    lines = [writer.stdout.readline().split() for _ in range(200)]
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    journal = Journal(file)
    known = {row.lease_id for row in journal.leases()}
    assert {number for number, _ in lines} <= known
    assert journal.next_fence() > max(int(fence) for _, fence in lines)
