"""The pool's HTTP interface: fields and status codes, tokens, and what must not get through. Over simulated
nodes, asked by a plain HTTP client as the clients of swe-rl ask."""

import asyncio
import socket
from contextlib import asynccontextmanager

import httpx
import pytest

from patchwright.errors import SandboxError
from patchwright.fleet import api
from patchwright.fleet.client import PoolClient
from patchwright.fleet.journal import Journal
from patchwright.fleet.pool import Pool, PoolOptions
from patchwright.fleet.pool_server import pool_app
from patchwright.fleet.serving import Address, Serving
from patchwright.fleet.simulated import SimulatedNodes

TOKEN = "a-token-of-the-pools-own"


@asynccontextmanager
async def served(nodes, token=TOKEN, **options):
    pool = Pool(list(nodes), nodes.connect, Journal(), PoolOptions(look_seconds=0.1, **options))
    await pool.start()
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        Serving(pool_app(pool, token), Address()) as serving,
        httpx.AsyncClient(base_url=serving.url, headers=headers, timeout=20) as http,
    ):
        yield pool, http, serving.url
    await pool.close()


def test_the_conversation_of_a_swe_rl_client():
    async def run():
        async with served(SimulatedNodes.many(2), token="") as (pool, http, _):
            health = (await http.get("/healthz")).json()
            assert health["ok"] is True
            body = {"image": "host", "instance_id": "django__django-1"}
            lease = (await http.post("/allocate", json=body)).json()
            assert lease["ok"] is True and lease["lease_id"].startswith("swe-lease-")
            assert lease["node_url"] in pool.nodes
            name = {"lease_id": lease["lease_id"]}
            assert (await http.post("/heartbeat", json=name)).json()["ok"] is True
            done = await http.post(
                "/exec", json={**name, "command": "ls", "cwd": "/testbed", "timeout": 180, "env": {}}
            )
            assert (
                done.status_code == 200 and done.json()["returncode"] == 0 and done.json()["output"] == "ls"
            )
            assert (await http.post("/diff", json={**name, "cwd": "/testbed"})).json()["patch"] == ""
            status = (await http.get("/status")).json()
            assert status["active_leases"] == 1 and len(status["nodes"]) == 2
            assert status["ok"] is True and status["pool"]["total_leases"] == 1
            assert (await http.post("/close", json=name)).json()["ok"] is True
            assert (await http.get("/status")).json()["active_leases"] == 0
            assert (await http.post("/exec", json={**name, "command": "ls"})).status_code == 410

    asyncio.run(run())


@pytest.mark.parametrize(
    "path", ["/allocate", "/heartbeat", "/exec", "/diff", "/evaluate", "/close", "/fork", "/nodes"]
)
def test_bodies_that_are_no_requests(path):
    async def run():
        async with served(SimulatedNodes.many(1)) as (_, http, _):
            for body in (
                b"",
                b"{",
                b"[1]",
                b"\xff\xfe",
                b'{"lease_id": 5, "image": 5, "url": 5}',
                b"{}" * 10,
                b"[" * 9999,
            ):
                reply = await http.post(path, content=body)
                assert reply.status_code == 400 and "\n" not in reply.json()["error"], (body, reply.text)

    asyncio.run(run())


def test_nobody_gets_in_without_the_token():
    async def run():
        async with served(SimulatedNodes.many(1)) as (pool, http, url):
            lease = (await http.post("/allocate", json={"image": "host"})).json()
            for token in ("nothing else", "wrong", lease["token"], TOKEN + "x", "ü"):
                headers = {"authorization": f"Bearer {token}".encode()}
                async with httpx.AsyncClient(base_url=url, headers=headers) as stranger:
                    assert (await stranger.post("/allocate", json={"image": "host"})).status_code == 401
                    assert (
                        await stranger.post("/close", json={"lease_id": lease["lease_id"]})
                    ).status_code == 401
                    assert (await stranger.get("/status")).status_code == 401
                    assert (await stranger.get("/healthz")).status_code == 200
            assert len(pool.book) == 1

    asyncio.run(run())


def test_bodies_that_are_too_large_are_refused_before_they_are_read():
    async def run():
        async with served(SimulatedNodes.many(1)) as (_, http, url):
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST /heartbeat HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n"
                "content-length: 99999999999\r\n\r\n".encode()
            )
            assert b" 413 " in await reader.readline()
            writer.close()

            async def endless():
                for _ in range(3):
                    yield b"x" * 30_000

            reply = await http.post("/close", content=endless())
            assert reply.status_code == 413 and "over" in reply.json()["error"]
            assert (await http.get("/healthz")).json()["ok"] is True

    asyncio.run(run())


def test_a_client_that_hangs_up_leaves_the_queue():
    async def run():
        async with served(SimulatedNodes.many(1), max_per_node=1) as (pool, http, url):
            held = (await http.post("/allocate", json={"image": "host"})).json()
            host, port = url.removeprefix("http://").split(":")
            body = b'{"image": "host"}'
            head = f"host: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {len(body)}\r\n\r\n"
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"POST /allocate HTTP/1.1\r\n" + head.encode() + body)
            await _until(lambda: len(pool.line) == 1)
            writer.close()
            await _until(lambda: len(pool.line) == 0)
            await http.post("/close", json={"lease_id": held["lease_id"]})
            assert (await http.post("/allocate", json={"image": "host", "wait": 1})).status_code == 200

    asyncio.run(run())


def test_a_crowd_waits_and_every_one_is_answered():
    async def run():
        nodes = SimulatedNodes.many(4)
        async with served(nodes, max_waiting=200) as (pool, http, _):

            async def one():
                reply = await http.post("/allocate", json={"image": "host", "wait": 0.5})
                return reply.status_code

            codes = await asyncio.gather(*(one() for _ in range(300)))
            assert sorted(set(codes)) == [200, 503] and codes.count(200) == 4 * 16
            assert len(pool.line) == 0 and sum(node.state.busy for node in pool.nodes.values()) == 64

    asyncio.run(run())


def test_nodes_come_and_go_over_http():
    async def run():
        nodes = SimulatedNodes.many(2)
        first, second = nodes
        pool_nodes = SimulatedNodes({first: nodes[first]})
        async with served(pool_nodes) as (_, http, _):
            pool_nodes[second] = nodes[second]
            known = (await http.post("/nodes", json={"url": second + "/"})).json()["nodes"]
            assert [node["url"] for node in known] == [first, second]
            gone = await http.request("DELETE", "/nodes", json={"url": first})
            assert gone.json()["nodes"][0]["draining"] is True
            assert (await http.post("/allocate", json={"image": "host"})).json()["node_url"] == second
            assert (await http.request("DELETE", "/nodes", json={"url": "http://x:1"})).status_code == 404
            assert (await http.post("/nodes", json={"url": "file:///etc"})).status_code == 400

    asyncio.run(run())


def test_the_figures_are_there_for_prometheus():
    async def run():
        async with served(SimulatedNodes.many(2)) as (_, http, _):
            await http.post("/allocate", json={"image": "host"})
            text = (await http.get("/metrics")).text
            assert "patchwright_pool_leases_total 1.0" in text and "patchwright_pool_waiting 0.0" in text
            assert 'patchwright_pool_node_healthy{node="http://node-1:5000"} 1.0' in text

    asyncio.run(run())


def test_a_command_is_not_run_twice_when_it_is_asked_for_twice():
    async def run():
        nodes = SimulatedNodes.many(1)
        async with served(nodes) as (_, http, _):
            lease = (await http.post("/allocate", json={"image": "host"})).json()
            body = {"lease_id": lease["lease_id"], "command": "once"}
            for _ in range(3):
                reply = await http.post("/exec", json=body, headers={api.IDEMPOTENCY_KEY: "k"})
                assert reply.status_code == 200
            assert next(iter(nodes.values())).ran == {"once": 1}

    asyncio.run(run())


def test_the_client_keeps_its_leases_alive_and_says_what_is_wrong():
    async def run():
        nodes = SimulatedNodes.many(1)
        async with served(nodes, ttl=4) as (pool, _, url):
            async with PoolClient(url, TOKEN, direct=False) as client:
                lease = await client.allocate("host")
                await asyncio.sleep(6)
                assert (await client.exec(lease, "echo")).output == "echo"
            await _until(lambda: len(pool.book) == 0)
            async with PoolClient(url, "wrong-token", patience=0) as stranger:
                with pytest.raises(SandboxError, match="token"):
                    await stranger.allocate("host")
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            port = nobody.getsockname()[1]
        async with PoolClient(f"http://127.0.0.1:{port}", TOKEN, patience=0) as lonely:
            with pytest.raises(SandboxError, match="does not answer"):
                await lonely.allocate("host")

    asyncio.run(run())


def test_an_allocation_that_was_given_up_is_taken_back():
    async def run():
        nodes = SimulatedNodes.many(1, create_seconds=0.3)
        async with served(nodes) as (pool, _, url), PoolClient(url, TOKEN) as client:
            asking = asyncio.create_task(client.allocate("host"))
            await _until(lambda: len(pool.book) == 1)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await _until(lambda: len(pool.book) == 0 and not next(iter(nodes.values())).boxes)

    asyncio.run(run())


async def _until(condition, seconds=10.0):
    for _ in range(int(seconds * 100)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come about")
