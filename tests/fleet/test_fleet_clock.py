"""Clocks that are set while leases live: terms go by a clock that nobody can set. Node and pool run with a
time of day that jumps by years at every look at it."""

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest
from tests.fleet.pool_processes import Server, free_port

from patchwright.errors import SandboxError
from patchwright.fleet.client import PoolClient

JUMPING = """
import random, time
real = time.time
time.time = lambda: max(0.0, real() + random.uniform(-1, 1) * 3e8)
time.time_ns = lambda: int(time.time() * 1e9)
"""
TTL = 6.0


@pytest.fixture
def fleet(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(JUMPING)
    env = {"PYTHONPATH": str(tmp_path)}
    node = Server(tmp_path, "node", "serve", "--open", "--port", 0, env=env)
    terms = ("--ttl", TTL, "--look-seconds", 0.2, "--journal", tmp_path / "pool.db")
    pool = Server(
        tmp_path, "pool", "serve", "--open", "--port", free_port(), "--node", node.url, *terms, env=env
    )
    yield node, pool
    for server in (pool, node):
        server.stop()
        server.process.stderr.close()


def test_terms_do_not_go_by_the_time_of_day(fleet, tmp_path):
    """Neither in a running process nor across a restart is a lease in use ended, or one out of use kept."""
    _, pool = fleet

    async def run():
        async with PoolClient(pool.url) as client:
            used = await client.allocate("host")
            async with PoolClient(pool.url) as gone:
                idle, late = await gone.allocate("host"), await gone.allocate("host", ttl=2 * TTL)
            await asyncio.sleep(1)
            assert (await client.status())["active_leases"] == 3, "nothing ends before its time"
            await until(lambda: leases(client, {used.lease_id, late.lease_id}))
            with pytest.raises(SandboxError):
                await client.exec(idle, "true")
            busy = asyncio.create_task(client.exec(used, "sleep 10; echo on"))  # its box outlives the pool
            await asyncio.sleep(1)
            pool.kill()
            await asyncio.to_thread(pool.start)
            assert (await busy).output == "on\n"
            await until(lambda: leases(client, {used.lease_id}))
            await asyncio.sleep(TTL)
            assert (await client.exec(used, "echo on")).output == "on\n"
            await client.close(used)

    asyncio.run(run())


def test_there_is_no_time_of_day_in_the_journal(fleet, tmp_path):
    """A lease of a journal from any time is given a new term, and ends with it when nobody uses it."""
    _, pool = fleet

    async def allocate():
        async with PoolClient(pool.url) as client:
            return await client.allocate("host", ttl=5 * TTL)

    async def find(lease):
        async with PoolClient(pool.url) as client:
            assert (await client.exec(lease, "echo on")).output == "on\n"
            await until(lambda: leases(client, set()))

    lease = asyncio.run(allocate())
    pool.kill()
    with closing(sqlite3.connect(tmp_path / "pool.db")) as journal:
        numbers = [value for row in journal.execute("SELECT * FROM leases") for value in row]
    assert not [value for value in numbers if isinstance(value, float | int) and value > 1e8]
    pool.start()
    asyncio.run(find(lease))


async def leases(client, expected):
    return {lease["lease_id"] for lease in (await client.status())["leases"]} == expected


async def until(condition, seconds=90.0):
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.1)
