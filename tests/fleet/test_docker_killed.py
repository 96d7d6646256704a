"""kill -9 of Docker under busy leases, alone and with pool, node and a client in any order: the node says so
and heals by itself, nothing runs twice, and after one term nothing is left."""

import asyncio
import os
import random
import re
import subprocess
import time
from pathlib import Path

import httpx
import pytest
from tests.fleet.docker_engine import Engine
from tests.fleet.pool_processes import Server, free_port
from tests.fleet.test_fleet_survives import ROUNDS, all_dead, counting, other_client, rows
from tests.fleet.test_fleet_survives import until as until_late

from patchwright.errors import SandboxError
from patchwright.fleet.client import PoolClient
from patchwright.fleet.node_client import NodeClient
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.docker import DockerBackend

pytestmark = [pytest.mark.docker, pytest.mark.e2e]

TTL = 30.0
"""Longer than a pool takes to start on a busy machine: what works through it is in no use meanwhile."""
LEASES = 50 if ROUNDS >= 20 else 12
"""Of Docker boxes; 12 are for every day, 50 for a release."""
THEIRS = 10 if ROUNDS >= 20 else 2
"""Of Docker boxes too, of the client that is killed."""
OTHERS = 4
"""Leases of the other node, which nothing happens to."""
ALARM = 120
"""Seconds after which a container that was being started when its engine died ends by itself."""
_SCRIPT = Path(__file__).parents[1] / "docker_image.sh"
_MACHINES = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock").removeprefix("unix://")


async def until(condition, seconds=60.0):
    """Patient: starting and ending dozens of containers is all that the machine may do meanwhile."""
    await until_late(condition, seconds)


@pytest.fixture(scope="module")
def image():
    if os.environ.get("PATCHWRIGHT_DOCKER") != "1":
        pytest.skip("PATCHWRIGHT_DOCKER=1 runs it")
    done = subprocess.run(["bash", _SCRIPT, "name"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="module")
def engine(image):
    engine = Engine()
    try:
        engine.load(image, _MACHINES)
        yield engine
    finally:
        engine.remove()


class Docked:
    """A node of Docker boxes, one of namespace boxes, and a pool before them."""

    def __init__(self, folder, engine, image):
        self.engine, self.image = engine, image
        options = ("--port", free_port(), "--sandbox", "docker", "--image", image)
        self.node = Server(folder, "node", "serve", *options, env={"DOCKER_HOST": engine.host})
        self.other = Server(folder, "node", "serve", "--port", free_port())
        port = free_port()
        nodes = ("--node", self.node.url, "--node", self.other.url)
        options = ("--ttl", TTL, "--look-seconds", 0.2, "--max-per-node", LEASES + THEIRS + OTHERS)
        self.pool = Server(folder, "pool", "serve", "--port", port, *nodes, *options)
        self.folder = folder / "config" / "patchwright"
        self.journal = self.folder / f"pool-{port}.db"
        self.token_file = self.folder / "pool.token"

    def client(self, *, direct):
        return PoolClient(self.pool.url, self.token_file.read_text().strip(), direct=direct)

    def at_node(self):
        return NodeClient(self.node.url, (self.folder / "node.token").read_text().strip())

    def health(self):
        return httpx.get(f"{self.node.url}/healthz", timeout=60).json()

    def stop(self):
        for server in (self.pool, self.node, self.other):
            server.kill()
            server.process.stderr.close()
        assert rows(self.journal) == 0


@pytest.fixture
def docked(tmp_path, engine, image):
    fleet = Docked(tmp_path, engine, image)
    yield fleet
    fleet.stop()


async def open_leases(fleet, direct, through_pool):
    """Of boxes in both nodes, half of them for each client; once the pool knows which has what."""
    await until(lambda: sound(fleet))
    clients = [direct, through_pool] * ((LEASES + OTHERS) // 2)
    images = [fleet.image] * LEASES + ["host"] * OTHERS
    asked = (client.allocate(image) for client, image in zip(clients, images, strict=True))
    leases = await asyncio.gather(*asked)
    pairs = list(zip(clients, leases, strict=True))
    docker = [pair for pair in pairs if pair[1].node_url == fleet.node.url]
    assert len(docker) == LEASES
    return docker, [pair for pair in pairs if pair not in docker]


def at_work(pairs, stop, least=3):
    return [asyncio.create_task(counting(client, lease, stop, least)) for client, lease in pairs]


async def says_so(fleet):
    health = await asyncio.to_thread(fleet.health)
    return not health["ok"] and "Docker does not answer" in health["error"]


async def sound(fleet):
    """Whether the node, and the pool about it, say that boxes can be made."""
    async with fleet.client(direct=True) as client:
        nodes = (await client.status())["nodes"]
    return (await asyncio.to_thread(fleet.health))["ok"] and all(node["healthy"] for node in nodes)


async def all_refused(tasks):
    """What whoever works in a box that died is told."""
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, SandboxError) and getattr(outcome, "status", 0) in (410, 500), outcome
        assert re.search(r"died|Docker|is over|cannot be reached", str(outcome)), outcome


async def works_again(fleet, client):
    lease = await client.allocate(fleet.image, wait=120)
    assert lease.node_url == fleet.node.url
    assert (await client.exec(lease, "echo back")).output == "back\n"
    await client.close(lease)


async def left(fleet):
    async with fleet.client(direct=True) as client:
        status = await client.status()
    return status["active_leases"] + sum(node["active_containers"] for node in status["nodes"])


async def nothing_left(fleet):
    taken, ours = await left(fleet), fleet.engine.ours()
    print(f"{taken} leases and slots taken, Docker has {[one[:50] for one in ours[:9]]}")
    return taken == 0 and ours == []


async def all_started(engine):
    return engine.all_started()


async def nothing_runs(engine, *, also_shims):
    return engine.inside() == [] and not (also_shims and engine.shims())


async def nothing_mounted(engine):
    return len(engine.mounts()) <= 1  # its own folder


async def check_nothing_left(fleet, inside, *, also_shims):
    """After one term, and the time that a removal waits between its tries; without the shims, when Docker
    may have been killed while it was starting a container."""
    ended = time.monotonic()
    await until(lambda: nothing_left(fleet), TTL + 60)
    print(f"nothing left after {time.monotonic() - ended:.1f} s")
    await until(lambda: all_dead(inside))
    await until(lambda: nothing_runs(fleet.engine, also_shims=also_shims), ALARM + 60)
    await until(lambda: nothing_mounted(fleet.engine))


CRASHES = pytest.mark.parametrize(
    ("victims", "live_restore"),
    [(("dockerd", "containerd"), False), (("dockerd",), True)],
    ids=["ends its containers", "goes on with them"],
)
"""An engine that comes back ends its containers, or finds them alive: then they are removed by us."""


@CRASHES
def test_docker_killed_under_busy_leases(docked, victims, live_restore):
    async def run():
        engine, stop = docked.engine, asyncio.Event()
        async with docked.client(direct=True) as direct, docked.client(direct=False) as through_pool:
            docker, others = await open_leases(docked, direct, through_pool)
            doomed, safe = at_work(docker, stop), at_work(others, stop, 6)
            async with docked.at_node() as node:
                alone = await node.create(docked.image)  # without lease or term
            await asyncio.sleep(1)
            inside = engine.inside()
            assert len(inside) >= LEASES
            await until(lambda: all_started(engine))
            await asyncio.to_thread(engine.kill, *victims)
            await all_refused(doomed)
            await until(lambda: says_so(docked))
            async with docked.at_node() as node:
                with pytest.raises(SandboxError, match="Docker does not answer"):
                    await node.create(docked.image)
                with pytest.raises(SandboxError, match="Docker does not answer"):
                    await node.destroy(alone.container_id)  # the node does it when Docker is back
            closing = [asyncio.create_task(client.close(lease)) for client, lease in docker[::2]]
            await asyncio.sleep(1)
            await asyncio.to_thread(engine.start, live_restore=live_restore)
            await until(lambda: sound(docked))
            await works_again(docked, direct)
            stop.set()
            assert min(await asyncio.gather(*safe)) > 5
            await asyncio.gather(*closing)
        await check_nothing_left(docked, inside, also_shims=True)

    asyncio.run(run())


async def kill_all(fleet, client, chance):
    """Docker, the pool, the node and a client, in any order. Docker comes back at the end."""

    async def kill_docker():
        await asyncio.to_thread(fleet.engine.kill, *crash)

    async def kill_pool():
        fleet.pool.kill()
        await asyncio.to_thread(fleet.pool.start)

    async def kill_node():
        fleet.node.kill()
        await asyncio.to_thread(fleet.node.start)

    async def kill_client():
        client.kill()

    crash = chance.choice([("dockerd", "containerd"), ("dockerd",)])
    victims = [kill_docker, kill_pool, kill_node, kill_client]
    chance.shuffle(victims)
    print("killed:", *(victim.__name__ for victim in victims))
    for victim in victims:
        await asyncio.sleep(chance.uniform(0, 0.7))
        await victim()
    await asyncio.to_thread(fleet.engine.start, live_restore=chance.random() < 0.5)


async def one_round(fleet, chance):
    stop = asyncio.Event()
    async with fleet.client(direct=True) as direct, fleet.client(direct=False) as through_pool:
        docker, others = await open_leases(fleet, direct, through_pool)
        other = other_client(fleet, THEIRS, fleet.image)
        assert await asyncio.to_thread(other.stdout.readline) == "ready\n"
        doomed, safe = at_work(docker, stop), at_work(others, stop)
        await asyncio.sleep(1)
        inside = fleet.engine.inside()
        await kill_all(fleet, other, chance)
        await all_refused(doomed)
        await until(lambda: sound(fleet))
        await works_again(fleet, direct)
        stop.set()
        assert min(await asyncio.gather(*safe)) > 2
        await asyncio.gather(*(client.close(lease) for client, lease in others))
    other.communicate()
    await check_nothing_left(fleet, inside, also_shims=False)


def test_docker_pool_node_and_client_killed_in_any_order(docked):
    chance = random.Random(5)
    for _ in range(ROUNDS if ROUNDS >= 20 else 1):
        asyncio.run(one_round(docked, chance))


@CRASHES
def test_a_backend_whose_docker_was_killed(engine, image, victims, live_restore):
    """Warm containers are replaced, a box that could not be closed is closed, and a fork's image goes too."""

    async def run():
        backend = DockerBackend(default_image=image, socket=str(engine.socket), warm=2)
        box = await backend.open(BoxSpec(image=image))
        fork = await box.fork()
        await until(lambda: made(engine, 5))  # two boxes, an image, and two that are warm
        await until(lambda: all_started(engine))
        await asyncio.to_thread(engine.kill, *victims)
        for one in (box, fork):
            with pytest.raises(SandboxError, match="Docker does not answer"):
                await one.close()
        assert "Docker does not answer" in str(await backend.available())
        await asyncio.to_thread(engine.start, live_restore=live_restore)
        assert await backend.available() is None
        await fork.close()
        assert box.closed is False and fork.closed is True
        await box.close()
        await until(lambda: made(engine, 2))
        again = await backend.open(BoxSpec(image=image))
        assert (await again.exec("echo back")).output == "back\n"
        await backend.close()
        assert engine.ours() == []
        await until(lambda: nothing_runs(engine, also_shims=True))

    asyncio.run(run())


async def made(engine, count):
    return len(engine.ours()) == count
