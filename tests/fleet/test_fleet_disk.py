"""Journal and audit logs on a small file system of their own that becomes full: no lease is promised that is
not written down, those there go on, and with room again all is well. Real processes; needs root to mount."""

import asyncio
import json
import os
import subprocess

import pytest
from tests.fleet.pool_processes import Server, free_port

from patchwright.errors import SandboxError
from patchwright.fleet.client import PoolClient


@pytest.fixture
def disk(tmp_path):
    """2 MB of disk."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(disk):
    """Take all the room there is, to the last byte."""
    with (disk / "filler").open("ab", buffering=0) as out:
        for size in (65536, 512, 1):
            try:
                while True:
                    out.write(bytes(size))
            except OSError:
                continue


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")
def test_full_disk_under_journal_and_logs(tmp_path, disk):
    flags = ("serve", "--open", "--port")
    node = Server(tmp_path, "node", *flags, free_port(), "--audit", disk / "node.jsonl")
    files = ("--journal", disk / "pool.db", "--audit", disk / "pool.jsonl")
    pool = Server(tmp_path, "pool", *flags, free_port(), "--node", node.url, "--max-per-node", 64, *files)

    async def run():
        async with PoolClient(pool.url, direct=False, patience=1) as client:
            kept = await client.allocate("host")
            fill(disk)
            with pytest.raises(SandboxError, match="see to its disk") as refused:
                for _ in range(40):  # what SQLite has set aside is used up first
                    await client.allocate("host")
            assert refused.value.status == 503 and "\n" not in str(refused.value)
            for number in range(50):
                assert (await client.exec(kept, f"echo {number}")).output == f"{number}\n"
            (disk / "filler").unlink()
            later = await client.allocate("host")
            return kept, later, (await client.status())["active_leases"]

    async def go_on(leases, count):
        async with PoolClient(pool.url, direct=False) as client:
            assert (await client.status())["active_leases"] == count
            for lease in leases:
                assert (await client.exec(lease, "echo on")).output == "on\n"
                await client.close(lease)

    kept, later, count = asyncio.run(run())
    pool.kill()
    pool.start()
    asyncio.run(go_on((kept, later), count))
    for server in (pool, node):
        server.stop()
        server.process.stderr.close()
    for name, least in (("node", 5), ("pool", 5)):
        lines = [json.loads(line) for line in (disk / f"{name}.jsonl").read_text().splitlines()]
        assert len(lines) >= least and lines[-1]["what"], "written again, and nothing torn"
