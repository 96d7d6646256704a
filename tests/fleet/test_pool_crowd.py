"""Thousands of requests at once, over sockets, against a pool process that is full: every one is answered."""

import asyncio
import contextlib
import os
import resource
import time

import aiohttp
import psutil
from tests.fleet.pool_processes import Server

CROWD = min(10_000, 1000 * int(os.environ.get("PATCHWRIGHT_ROUNDS", "2")))
"""2,000 are for every day, 10,000 for a release."""
REFUSED = CROWD // 10
GRANTED = 60
BYTES_EACH = 64 * 1024
"""Most memory of the pool for one request that waits."""


@contextlib.contextmanager
def a_pool(folder, *options, files=None):
    """An open pool of one open node, in processes of their own."""
    node = Server(folder, "node", "serve", "--port", 0, "--open")
    pool = Server(folder, "pool", "serve", "--port", 0, "--open", "--node", node.url, *options, files=files)
    try:
        yield pool
    finally:
        for server in (pool, node):
            server.stop()
            server.process.stderr.close()


async def ask(http, path, **fields):
    async with http.post(path, json=fields) as reply:
        return reply.status, reply.headers, await reply.json()


async def until(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not await condition():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.05)


def test_a_crowd_before_a_full_pool_is_answered_to_the_last(tmp_path):
    """Some are granted in the order in which they came, some are refused at once, the rest at their deadline;
    meanwhile the pool answers others, and its memory is bounded."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wait = 30 + CROWD / 250  # a slow machine must have them all in line before the first gives up

    async def run(pool):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(pool.url, connector=connector) as http:
            held = [(await ask(http, "/allocate", image="host"))[2]["lease_id"] for _ in range(4)]
            memory = psutil.Process(pool.process.pid).memory_info
            before, ends, left = memory().rss, [], GRANTED

            async def one(number):
                nonlocal left
                status, headers, answer = await ask(http, "/allocate", image="host", wait=wait)
                ends.append((number, status, headers, answer))
                if status == 200:
                    left -= 1
                    if left > 3:  # the last ones keep theirs: the others wait in vain
                        await ask(http, "/close", lease_id=answer["lease_id"])
                    else:
                        held.append(answer["lease_id"])

            crowd = []
            for number in range(CROWD):
                crowd.append(asyncio.create_task(one(number)))
                await asyncio.sleep(0)
            await until(lambda: waits(http, CROWD - REFUSED))
            await until(lambda: enough(ends, REFUSED))
            peak = memory().rss - before
            for lease_id in held[:4]:
                await ask(http, "/close", lease_id=lease_id)
            while not all(task.done() for task in crowd):
                assert (await (await http.get("/healthz")).json())["ok"] is True
                await asyncio.sleep(0.2)
            await asyncio.gather(*crowd)
            for lease_id in held[4:]:
                await ask(http, "/close", lease_id=lease_id)
            await until(lambda: waits(http, 0))
            assert (await (await http.get("/status")).json())["active_leases"] == 0
            return ends, peak

    try:
        options = ("--max-per-node", 4, "--max-waiting", CROWD - REFUSED)
        with a_pool(tmp_path, *options) as pool:
            started = time.monotonic()
            ends, peak = asyncio.run(run(pool))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    print(f"{CROWD} in {time.monotonic() - started:.1f} s, {peak / CROWD / 1024:.0f} KB each")
    assert sorted(number for number, *_ in ends) == list(range(CROWD))
    granted = [number for number, status, *_ in ends if status == 200]
    refused = [(headers, answer) for _, status, headers, answer in ends if status == 503]
    assert len(granted) == GRANTED and len(granted) + len(refused) == CROWD
    assert all(headers["retry-after"] and "try again later" in answer["error"] for headers, answer in refused)
    assert sum("wait for a box already" in answer["error"] for _, answer in refused) == REFUSED
    assert max(granted) < CROWD / 4, "those who came first"
    assert peak < CROWD * BYTES_EACH


async def waits(http, count):
    async with http.get("/status") as reply:
        return (await reply.json())["waiting"] == count


async def granted(http):
    return (await ask(http, "/allocate", image="host"))[0] == 200


async def enough(ends, count):
    return len(ends) == count


def test_when_sockets_run_out_there_is_still_an_answer(tmp_path):
    async def run(pool):
        host, port = pool.url.removeprefix("http://").split(":")
        idle = [await asyncio.open_connection(host, int(port)) for _ in range(110)]
        try:
            async with aiohttp.ClientSession(pool.url) as http:
                status, headers, answer = await ask(http, "/allocate", image="host")
                assert status == 503 and "connections are open already" in answer["error"]
                assert headers["retry-after"] and headers["connection"] == "close"
                assert (await (await http.get("/healthz")).json())["ok"] is True
        finally:
            for _, writer in idle:
                writer.close()
        async with aiohttp.ClientSession(pool.url) as http:
            await until(lambda: granted(http))

    with a_pool(tmp_path, "--max-per-node", 4, files=130) as pool:
        asyncio.run(run(pool))
