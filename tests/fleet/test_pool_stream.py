"""A command's output as it comes, through the pool: as it does straight from the node, and found again when
pool or connection die on the way. Real nodes, a real pool."""

import asyncio
import json
import time

import httpx
import pytest
from tests.fleet.pool_processes import Fleet

from patchwright.errors import SandboxError
from patchwright.fleet.client import PoolClient


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    fleet = Fleet(tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.stop()


def on_a_lease(fleet, work):
    async def run():
        async with fleet.client(direct=False) as client:
            lease = await client.allocate("host")
            try:
                return await work(client, lease)
            finally:
                await client.close(lease)

    return asyncio.run(run())


def test_output_comes_while_the_command_runs(fleet):
    async def work(client, lease):
        came, started = [], time.monotonic()
        done = await client.exec(
            lease,
            "cat; printf 'a\\377'; sleep 3; echo b; exit 4",
            stdin=b"in ",
            on_output=lambda chunk: came.append((chunk, time.monotonic() - started)),
        )
        assert b"".join(chunk for chunk, _ in came) == b"in a\xffb\n" and done.code == 4
        assert done.output == "in a\ufffdb\n" and came[0][1] < came[-1][1] - 0.5
        late = await client.exec(lease, "echo so far; sleep 60", timeout=3, on_output=came.append)
        assert late.timed_out and late.output == "so far\n"

    on_a_lease(fleet, work)


def test_a_great_deal_of_output_passes_whole_or_with_a_note(fleet):
    async def work(client, lease):
        seen = []
        done = await client.exec(
            lease, "head -c 20000000 /dev/zero | tr '\\0' x", on_output=seen.append, timeout=60
        )
        assert done.code == 0 and done.omitted > 0
        streamed = b"".join(seen)
        assert len(streamed) >= 20_000_000 or b"bytes not streamed" in streamed

    on_a_lease(fleet, work)


def test_what_is_refused_is_refused_with_a_status(fleet):
    async def work(client, lease):
        with pytest.raises(SandboxError) as refused:
            await client.exec(lease, "true", timeout=-1, on_output=print)
        assert refused.value.status == 400 and "timeout" in str(refused.value)
        await client.close(lease)
        with pytest.raises(SandboxError) as refused:
            await client.exec(lease, "true", on_output=print)
        assert refused.value.status == 410

    on_a_lease(fleet, work)


def test_who_cancels_kills_the_command(fleet):
    async def work(client, lease):
        begun = asyncio.Event()
        running = asyncio.create_task(
            client.exec(lease, "echo on; sleep 4545.5", on_output=lambda _: begun.set())
        )
        await asyncio.wait_for(begun.wait(), 60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert (await client.exec(lease, "pgrep -f '[4]545.5'")).code == 1

    on_a_lease(fleet, work)


def test_a_connection_cut_on_the_way_is_taken_up_again(fleet):
    """Through a wire before the pool that is cut once."""

    async def run():
        cuts, begun = 0, asyncio.Event()
        host, port = fleet.pool.url.removeprefix("http://").split(":")

        async def wire(reader, writer):
            nonlocal cuts
            up_reader, up_writer = await asyncio.open_connection(host, int(port))

            async def pump(source, target):
                while data := await source.read(65536):
                    target.write(data)
                target.close()

            pumps = [
                asyncio.create_task(pump(reader, up_writer)),
                asyncio.create_task(pump(up_reader, writer)),
            ]
            if cuts < 1:
                await begun.wait()
                cuts += 1
                writer.transport.abort()
                up_writer.transport.abort()
            await asyncio.wait(pumps)

        def on_output(chunk):
            seen.append(chunk)
            begun.set()

        server, seen = await asyncio.start_server(wire, "127.0.0.1", 0), []
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        token = fleet.token_file.read_text().strip()
        async with fleet.client() as straight, PoolClient(url, token, direct=False) as client:
            lease = await straight.allocate("host")
            command = "echo one | tee -a n; sleep 1.5; wc -l < n"
            done = await client.exec(lease, command, on_output=on_output)
            assert cuts == 1 and done.output == "one\n1\n" and seen[0] == b"one\n"
            await straight.close(lease)
        server.close()

    asyncio.run(run())


def test_a_pool_killed_on_the_way_is_asked_again(fleet):
    async def work(client, lease):
        begun, seen = asyncio.Event(), []

        def on_output(chunk):
            seen.append(chunk)
            begun.set()

        command = "echo one | tee -a n; sleep 3; wc -l < n"
        running = asyncio.create_task(client.exec(lease, command, on_output=on_output))
        await asyncio.wait_for(begun.wait(), 60)
        fleet.pool.kill()
        await asyncio.to_thread(fleet.pool.start)
        assert (await running).output == "one\n1\n" and seen[0] == b"one\n"

    on_a_lease(fleet, work)


def test_lines_are_those_of_a_node(fleet):
    """For clients of other makes: the same path below `/exec`, the same lines."""

    async def work(client, lease):
        token = fleet.token_file.read_text().strip()
        body = {"lease_id": lease.lease_id, "command": "echo hi", "cwd": "", "timeout": 10}
        headers = {"authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=fleet.pool.url, headers=headers, timeout=60) as http:
            reply = await http.post("/exec/stream", json=body)
            assert reply.headers["content-type"] == "application/x-ndjson"
            output, result = map(json.loads, reply.text.splitlines())
            assert output == {"output": "aGkK"} and result["result"]["output"] == "hi\n"
            assert (await http.post("/exec/stream", json={**body, "lease_id": "x"})).status_code == 404
            assert (await http.post("/exec/stream", content=b"[")).status_code == 400

    on_a_lease(fleet, work)
