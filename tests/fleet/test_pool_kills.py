"""kill -9 of a pool, a node and a client in the middle of work: nothing leaks, nothing runs twice."""

import asyncio
import subprocess
import sys
import time

import pytest
from tests.fleet.pool_processes import PATCHWRIGHT, Fleet, Server

from patchwright.errors import ConfigError, SandboxError
from patchwright.fleet.client import PoolClient
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.sandbox.base import BoxSpec

CLIENT = """
import asyncio, sys
from patchwright.fleet.client import PoolClient
from patchwright.recipes.assembly import SandboxConfig, open_boxes
from patchwright.sandbox.base import BoxSpec

async def main():
    client = PoolClient(sys.argv[1], sys.argv[2])
    leases = [await client.allocate("host") for _ in range(3)]
    print("ready", flush=True)
    await asyncio.gather(*(client.exec(lease, "sleep 300", timeout=400) for lease in leases))

asyncio.run(main())
"""


@pytest.fixture
def fleet(tmp_path, request):
    fleet = Fleet(tmp_path, ttl=getattr(request, "param", 5))
    yield fleet
    fleet.stop()


async def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.1)


async def empty(fleet):
    """Neither the pool nor its nodes have anything left."""
    async with fleet.client() as client:
        status = await client.status()
    taken = sum(node["active_containers"] for node in status["nodes"])
    return status["active_leases"] == 0 and taken == 0


async def write_lines(client, lease, count):
    for number in range(count):
        done = await client.exec(lease, f"echo {number} >> log; sleep 0.1")
        assert done.code == 0
    return (await client.exec(lease, "cat log")).output


@pytest.mark.parametrize("fleet", [60], indirect=True, ids=["long terms"])  # its leases are closed by hand
@pytest.mark.parametrize("direct", [False, True], ids=["through the pool", "direct"])
def test_a_pool_killed_under_busy_leases(fleet, direct):
    """Commands go on, each runs once, and the next pool goes on with every lease."""

    async def run():
        async with fleet.client(direct=direct) as client:
            leases = await asyncio.gather(*(client.allocate("host") for _ in range(6)))
            work = [asyncio.create_task(write_lines(client, lease, 15)) for lease in leases]
            await asyncio.sleep(0.7)
            fleet.pool.kill()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(fleet.pool.start)
            for output in await asyncio.gather(*work):
                assert output.split() == [str(number) for number in range(15)]
            later = await client.allocate("host")
            assert later.fence > max(lease.fence for lease in leases)
            await asyncio.gather(*(client.close(lease) for lease in (*leases, later)))
            assert await empty(fleet)

    asyncio.run(run())


def test_a_node_killed_under_busy_leases(fleet):
    """Its leases are void, the others do not notice, and a new node takes its place."""

    async def run():
        async with fleet.client(patience=1) as client:
            leases = await asyncio.gather(*(client.allocate("host") for _ in range(6)))
            doomed, sound = fleet.nodes
            work = [asyncio.create_task(write_lines(client, lease, 15)) for lease in leases]
            await asyncio.sleep(0.7)
            doomed.kill()
            for lease, outcome in zip(
                leases, await asyncio.gather(*work, return_exceptions=True), strict=True
            ):
                if lease.node_url == doomed.url:
                    assert isinstance(outcome, SandboxError), outcome
                else:
                    assert outcome.split() == [str(number) for number in range(15)]
            assert len({lease.node_url for lease in leases}) == 2
            assert (await client.allocate("host", wait=60)).node_url == sound.url
            await asyncio.to_thread(doomed.start)
        await until(lambda: empty(fleet))

    asyncio.run(run())


def test_a_client_that_was_killed_leaves_nothing_after_one_term(fleet):
    arguments = [sys.executable, "-c", CLIENT, fleet.pool.url, fleet.token_file.read_text().strip()]
    client = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "ready\n"
    time.sleep(6)
    assert not asyncio.run(empty(fleet)), "a client that lives keeps its leases"
    client.kill()
    client.communicate()
    asyncio.run(until(lambda: empty(fleet)))


def test_an_open_pool_before_open_nodes_and_what_is_refused(tmp_path):
    """The servers of swe-rl have no tokens: on loopback ours need none either."""
    node = Server(tmp_path, "node", "serve", "--port", 0, "--open")
    pool = Server(tmp_path, "pool", "serve", "--port", 0, "--open", "--node", node.url)

    async def run():
        async with PoolClient(pool.url) as client:
            lease = await client.allocate("host")
            assert (await client.exec(lease, "echo hello")).output == "hello\n"
            await client.close(lease)

    asyncio.run(run())
    for server in (pool, node):
        server.stop()
        server.process.stderr.close()
    for options, sentence in (
        (("--open", "--host", "0.0.0.0"), "works on loopback only"),
        (("--host", "0.0.0.0"), "--plain-http"),
        (("--node", "there"), "http://HOST:PORT"),
        (("--node-token-file", tmp_path / "none"), "there is no token file"),
    ):
        command = [PATCHWRIGHT, "pool", "serve", "--token-file", tmp_path / "pool.token", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert done.returncode == 2 and sentence in done.stderr, done.stderr


def test_https_all_the_way(tmp_path):
    """Pool and node behind one self-signed certificate, which every client must be told of."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    tls = ("--port", 0, "--tls-cert", cert, "--tls-key", key)
    node = Server(tmp_path, "node", "serve", *tls)
    pool = Server(tmp_path, "pool", "serve", *tls, "--node", node.url, "--node-ca", cert)
    token_file = tmp_path / "config" / "patchwright" / "pool.token"

    async def run(ca_file):
        boxes = SandboxConfig(use="remote", pool=pool.url, token_file=str(token_file), ca_file=ca_file)
        async with open_boxes(boxes) as backend:
            box = await backend.open(BoxSpec())
            return (await box.exec("echo hello")).output

    assert pool.url.startswith("https://") and node.url.startswith("https://")
    assert asyncio.run(run(str(cert))) == "hello\n"
    with pytest.raises(ConfigError, match="cannot be used"):
        asyncio.run(run(str(tmp_path / "none.pem")))
    for server in (pool, node):
        server.stop()
        server.process.stderr.close()
