"""Pool, node and client killed in any order, a node that hangs, a disk that is full, a long queue: what was
not killed goes on, no command runs twice, and after one term nothing is left."""

import asyncio
import contextlib
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.fleet.pool_processes import Fleet

from patchwright.errors import SandboxError
from patchwright.fleet.journal import Journal
from patchwright.fleet.pool import Pool, PoolOptions
from patchwright.fleet.pool_api import AllocateRequest, PoolError
from patchwright.fleet.simulated import SimulatedNodes

ROUNDS = int(os.environ.get("PATCHWRIGHT_ROUNDS", "2"))
"""Rounds of killing; 2 are for every day, 20 for a release."""
TTL = 30.0
"""Longer than a pool takes to start on a busy machine: what works through it is in no use meanwhile."""
OURS, THEIRS = 40, 10
"""Leases of the client that lives, and of the one that is killed."""
COUNT = "n=$(($(cat n 2>/dev/null || echo 0) + 1)); echo $n > n; sleep 0.5; echo $n"
"""Says how often it has run in this box."""
CLIENT = """
import asyncio, sys
from patchwright.fleet.client import PoolClient

async def main():
    client = PoolClient(sys.argv[1], sys.argv[2])
    leases = await asyncio.gather(*(client.allocate(sys.argv[4]) for _ in range(int(sys.argv[3]))))
    print("ready", flush=True)
    await asyncio.gather(*(client.exec(lease, "sleep 300", timeout=400) for lease in leases))

asyncio.run(main())
"""


@contextlib.contextmanager
def a_fleet(folder, **options):
    fleet = Fleet(folder, **options)
    try:
        yield fleet
    finally:
        fleet.stop()


async def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.1)


async def left(fleet):
    """Leases of the pool, and the slots they take."""
    async with fleet.client() as client:
        status = await client.status()
    return status["active_leases"] + sum(node["active_containers"] for node in status["nodes"])


def family(server):
    """The processes a node has started, whatever their namespace."""
    return psutil.Process(server.process.pid).children(recursive=True)


def groups(family):
    """Control groups of the boxes of these processes."""
    pids = {str(process.pid) for process in family}
    found = (
        Path(folder, name)
        for folder, names, _ in os.walk("/sys/fs/cgroup")  # other groups come and go meanwhile
        for name in names
        if folder.endswith("/patchwright") and name.count("-") == 3
    )
    return [path for path in found if path.name.split("-")[1] in pids]


def mounts(folder):
    """Mounts of this machine that are ours."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if str(folder) in line]


def rows(journal):
    with contextlib.closing(sqlite3.connect(journal)) as database:
        return database.execute("SELECT count(*) FROM leases").fetchone()[0]


async def counting(client, lease, stop, least=3):
    """One command after the other, each of which finds that those before it ran exactly once."""
    number = 0
    while number < least or not stop.is_set():
        number += 1
        done = await client.exec(lease, COUNT)
        assert done.code == 0 and done.output == f"{number}\n", (lease, number, done)
    return number


def other_client(fleet, count=THEIRS, image="host"):
    """A client in a process of its own, its leases all busy."""
    token = fleet.token_file.read_text().strip()
    arguments = [sys.executable, "-c", CLIENT, fleet.pool.url, token, str(count), image]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


async def kill_all(fleet, doomed, client, chance):
    """Pool, one node and a client, in any order; the servers come back. The processes of the node."""
    died = []

    async def kill_node():
        died.extend(family(doomed))
        doomed.kill()
        await asyncio.to_thread(doomed.start)

    async def kill_pool():
        fleet.pool.kill()
        await asyncio.to_thread(fleet.pool.start)

    async def kill_client():
        client.kill()

    victims = [kill_node, kill_pool, kill_client]
    chance.shuffle(victims)
    print("killed:", *(victim.__name__ for victim in victims))
    for victim in victims:
        await asyncio.sleep(chance.uniform(0, 0.7))
        await victim()
    return died


async def one_round(fleet, chance):
    doomed = chance.choice(fleet.nodes)
    other = other_client(fleet)
    async with fleet.client() as direct, fleet.client(direct=False) as through_pool:
        clients = [direct, through_pool] * (OURS // 2)
        leases = await asyncio.gather(*(client.allocate("host") for client in clients))
        assert await asyncio.to_thread(other.stdout.readline) == "ready\n"
        stop = asyncio.Event()
        pairs = list(zip(clients, leases, strict=True))
        work = [asyncio.create_task(counting(client, lease, stop)) for client, lease in pairs]
        await asyncio.sleep(1)
        died = await kill_all(fleet, doomed, other, chance)
        await asyncio.sleep(1)
        stop.set()
        outcomes = await asyncio.gather(*work, return_exceptions=True)
        survivors = check(doomed, pairs, outcomes)
        await asyncio.gather(*(client.close(lease) for client, lease in survivors[::2]))
    other.communicate()
    ended = time.monotonic()
    await until(lambda: nothing_left(fleet), TTL + 60)
    print(f"{len(survivors)} leases lived; nothing left after {time.monotonic() - ended:.1f} s")
    assert len(died) > OURS // 4
    await until(lambda: all_dead(died))
    await until(lambda: no_groups(died))


def check(doomed, pairs, outcomes):
    """Leases of the node that died are void; all others did everything once. The others."""
    survivors = []
    for (client, lease), outcome in zip(pairs, outcomes, strict=True):
        if lease.node_url == doomed.url:
            assert isinstance(outcome, SandboxError) and "token" not in str(outcome), outcome
        else:
            assert isinstance(outcome, int) and outcome > 2, outcome
            survivors.append((client, lease))
    assert len(survivors) >= OURS // 4
    return survivors


async def nothing_left(fleet):
    return await left(fleet) == 0


async def no_groups(family):
    return groups(family) == []


async def all_dead(processes):
    return not any(process.is_running() for process in processes)


@pytest.mark.e2e
def test_killed_in_any_order_nothing_is_left_and_nothing_ran_twice(tmp_path):
    chance = random.Random(11)
    with a_fleet(tmp_path, ttl=TTL, max_per_node=OURS + THEIRS) as fleet:
        for _ in range(ROUNDS):
            asyncio.run(one_round(fleet, chance))
        families = [process for node in fleet.nodes for process in family(node)]
    asyncio.run(until(lambda: all_dead(families)))
    asyncio.run(until(lambda: no_groups(families)))
    assert mounts(tmp_path) == []
    assert rows(fleet.journal) == 0


def test_a_node_that_hangs_holds_up_only_its_own(tmp_path):
    """Stopped for longer than the pool believes in it: others go on, and its own commands run once."""

    async def run(fleet):
        hung, sound = fleet.nodes
        async with fleet.client() as direct, fleet.client(direct=False) as through_pool:
            leases = await asyncio.gather(*(direct.allocate("host") for _ in range(6)))
            there = [lease for lease in leases if lease.node_url == hung.url]
            here = [lease for lease in leases if lease.node_url == sound.url]
            assert there and here
            hung.process.send_signal(signal.SIGSTOP)
            late = [direct.exec(there[0], COUNT), through_pool.exec(there[1], COUNT)]
            waiting = [asyncio.create_task(command) for command in late]
            started = time.monotonic()
            for lease in here:
                assert (await through_pool.exec(lease, "echo on")).output == "on\n"
            assert time.monotonic() - started < 10
            granted = await asyncio.gather(*(direct.allocate("host", wait=30) for _ in range(6)))
            assert {lease.node_url for lease in granted} == {sound.url}
            assert not any(task.done() for task in waiting)
            hung.process.send_signal(signal.SIGCONT)
            assert [done.output for done in await asyncio.gather(*waiting)] == ["1\n", "1\n"]
            await until(lambda: all_healthy(direct))
            await asyncio.gather(*(direct.close(lease) for lease in (*leases, *granted)))
            await until(lambda: nothing_left(fleet))

    with a_fleet(tmp_path, ttl=60) as fleet:
        asyncio.run(run(fleet))


async def all_healthy(client):
    return all(node["healthy"] for node in (await client.status())["nodes"])


def test_a_disk_that_is_full_under_the_journal(tmp_path):
    """No lease is promised that is not written down; those there are go on; with room again all is well."""

    async def run(fleet):
        pid = fleet.pool.process.pid
        async with fleet.client(direct=False) as client:
            kept = await client.allocate("host")
            size = max(path.stat().st_size for path in fleet.journal.parent.glob(f"{fleet.journal.name}*"))
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            with pytest.raises(PoolError, match="see to its disk"):
                for _ in range(20):
                    await client.close(await client.allocate("host"))
            assert (await client.exec(kept, "echo on")).output == "on\n"
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            later = await client.allocate("host")
            await asyncio.to_thread(fleet.pool.kill)
            await asyncio.to_thread(fleet.pool.start)
            for lease in (kept, later):
                assert (await client.exec(lease, "echo on")).output == "on\n"
                await client.close(lease)
        await until(lambda: nothing_left(fleet))

    with a_fleet(tmp_path) as fleet:
        asyncio.run(run(fleet))
    assert rows(fleet.journal) == 0


async def in_line(pool, count):
    return len(pool.line) == count


def test_ten_thousand_wait_their_turn():
    """In the order in which they came; the next is refused at once, and none is forgotten."""

    async def run():
        nodes, host = SimulatedNodes.many(4), AllocateRequest(image="host", wait=600)
        pool = Pool(list(nodes), nodes.connect, Journal(), PoolOptions(max_per_node=25))
        await pool.start()
        served = []

        async def one(number):
            lease = await pool.allocate(host)
            served.append(number)
            await pool.end(lease["lease_id"])

        holders = await asyncio.gather(*(pool.allocate(host) for _ in range(100)))
        queue = [asyncio.create_task(one(number)) for number in range(10_000)]
        await until(lambda: in_line(pool, 10_000), 300)
        started = time.monotonic()
        with pytest.raises(PoolError, match="try again later") as refused:
            await pool.allocate(host)
        assert refused.value.status == 503 and time.monotonic() - started < 10
        for lease in holders:
            await pool.end(lease["lease_id"])
        await asyncio.gather(*queue)
        assert sorted(served) == list(range(10_000))
        assert max(abs(place - number) for place, number in enumerate(served)) < 200
        assert len(pool.book) == 0 and sum(len(node.boxes) for node in nodes.values()) == 0
        await pool.close()

    asyncio.run(run())
