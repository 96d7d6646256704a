"""The client of a node: commands that run once, streams, forks, files. Real boxes, a real process."""

import asyncio
import json
import signal
import socket
import subprocess
import time

import httpx
import pytest
from node_process import node_process, wait_for

from patchwright.fleet.api import NodeError
from patchwright.fleet.node_client import NodeClient
from patchwright.types import Limits


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with node_process(tmp_path_factory.mktemp("node")) as node:
        yield node


def in_box(node, work):
    """Run `work(client, box)` on a fresh box."""

    async def run():
        async with node.client() as client:
            box = (await client.create("host")).container_id
            try:
                return await work(client, box)
            finally:
                await client.destroy(box)

    return asyncio.run(run())


def test_results_are_those_of_the_sandbox(node):
    async def work(client, box):
        done = await client.exec(box, "cat; echo $A >&2; exit 5", env={"A": "a"}, stdin=b"in\n", cwd="/tmp")
        assert (done.code, done.output, done.timed_out) == (5, "in\na\n", False) and done.seconds > 0
        late = await client.exec(box, "printf early; sleep 60", timeout=3)
        assert (late.code, late.output, late.timed_out) == (124, "early", True)
        long = await client.exec(box, "head -c 5000000 /dev/zero | tr '\\0' x")
        assert long.omitted > 4_000_000 and len(long.output) < 200_000

    in_box(node, work)


def test_a_key_runs_a_command_once(node):
    async def work(client, box):
        command = "echo x >> /tmp/count; sleep 0.5; wc -l < /tmp/count"
        both = await asyncio.gather(*(client.exec(box, command, key="k") for _ in range(5)))
        again = await client.exec(box, command, key="k")
        assert [done.output for done in (*both, again)] == ["1\n"] * 6
        with pytest.raises(NodeError) as refused:
            await client.exec(box, "echo other", key="k")
        assert refused.value.status == 409
        first, second = await client.create("host", key="c"), await client.create("host", key="c")
        copy, same = await client.fork(box, key="f"), await client.fork(box, key="f")
        assert first == second and copy == same
        for made in (first, copy):
            await client.destroy(made.container_id)

    in_box(node, work)


def test_a_client_that_hangs_up_finds_its_command_again(node):
    async def work(client, box):
        command = "echo x >> /tmp/ran; sleep 1; wc -l < /tmp/ran"
        with pytest.raises(NodeError):
            await client.request(
                "POST", "/container/exec", key="gone", timeout=0.3, retry=False,
                body=httpx.Request("POST", "http://x", json=body(box, command)).content,
            )  # fmt: skip
        reply = await client.request(
            "POST", "/container/exec", key="gone",
            body=httpx.Request("POST", "http://x", json=body(box, command)).content,
        )  # fmt: skip
        assert reply.json()["output"] == "1\n"

    def body(box, command):
        return {"container_id": box, "command": command}

    in_box(node, work)


def test_a_connection_cut_in_the_middle_is_taken_up_again(node):
    """Through a wire that is cut once, while the command runs."""

    async def run():
        cuts, begun = 0, asyncio.Event()

        async def wire(reader, writer):
            nonlocal cuts
            up_reader, up_writer = await asyncio.open_connection(host, port)

            async def pump(source, target):
                while data := await source.read(65536):
                    target.write(data)
                target.close()

            up = asyncio.create_task(pump(reader, up_writer))
            down = asyncio.create_task(pump(up_reader, writer))
            if cuts < 1:
                cuts += 1
                await begun.wait()
                writer.transport.abort()
                up_writer.transport.abort()
            await asyncio.wait({up, down})

        def on_output(chunk):
            seen.append(chunk)
            begun.set()

        host, port = node.url.removeprefix("http://").split(":")
        server, seen = await asyncio.start_server(wire, "127.0.0.1", 0), []
        address = server.sockets[0].getsockname()
        async with node.client() as straight:
            box = (await straight.create("host")).container_id
            async with NodeClient(f"http://127.0.0.1:{address[1]}", node.token, patience=10) as client:
                command = "echo one | tee -a /tmp/n; sleep 5; wc -l < /tmp/n"
                done = await client.exec(box, command, on_output=on_output)
            assert cuts == 1 and done.output == "one\n1\n" and b"".join(seen).endswith(b"1\n")
            await straight.destroy(box)
        server.close()

    asyncio.run(run())


def test_boxes_of_clients_that_are_gone_do_not_stay(node):
    """One whose creator left before the answer, and one whose client died while its command ran."""

    def send(path, body):
        content = json.dumps(body).encode()
        host, port = node.url.removeprefix("http://").split(":")
        wire = socket.create_connection((host, int(port)))
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {node.token}\r\n"
        wire.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        return wire

    before = node.get("/status").json()["active_containers"]
    created = node.metric("create")
    send("/container/create", {"image": "host"}).close()
    box = node.create(ttl=1)
    dead = send("/container/exec", {"container_id": box, "command": "sleep 4444"})
    time.sleep(0.3)
    dead.close()
    wait_for(lambda: node.metric("create") == created + 2)
    wait_for(lambda: node.get("/status").json()["active_containers"] == before)


def test_output_streams_while_the_command_runs(node):
    async def work(client, box):
        times, started = [], time.monotonic()
        done = await client.exec(
            box,
            "printf 'a\\377'; sleep 3; echo b; exit 4",
            on_output=lambda chunk: times.append((chunk, time.monotonic() - started)),
        )
        assert b"".join(chunk for chunk, _ in times) == b"a\xffb\n" and done.code == 4
        assert done.output == "a\ufffdb\n" and times[0][1] < times[-1][1] - 0.4
        with pytest.raises(NodeError) as refused:
            await client.exec("nope", "true", on_output=print)
        assert refused.value.status == 404

    in_box(node, work)


def test_a_cancelled_command_ends(node):
    async def work(client, box):
        running = asyncio.create_task(client.exec(box, "sleep 60", key="slow"))
        await asyncio.sleep(0.3)
        await client.cancel(box, "slow")
        with pytest.raises(NodeError):
            await asyncio.wait_for(running, 10)
        await client.cancel(box, "early")
        with pytest.raises(NodeError):
            await client.exec(box, "touch /tmp/never", key="early")
        assert (await client.exec(box, "ls /tmp/never; pgrep sleep")).code != 0

    in_box(node, work)


def test_a_fork_goes_its_own_way(node):
    async def work(client, box):
        await client.exec(box, "echo same > file; chmod 750 file; ln -s file link")
        copy = (await client.fork(box)).container_id
        assert (await client.exec(copy, "cat link; stat -c %a file")).output == "same\n750\n"
        await client.exec(copy, "echo other > file")
        assert (await client.exec(box, "cat file")).output == "same\n"
        await client.destroy(copy)

    in_box(node, work)


def test_files_go_in_and_out(node):
    async def work(client, box):
        data = bytes(range(256)) * 4096
        await client.write(box, "deep/er/ä b.bin", data, mode=0o755)
        assert await client.read(box, "/testbed/deep/er/ä b.bin") == data
        assert (await client.exec(box, "stat -c %a 'deep/er/ä b.bin'")).output == "755\n"
        for odd in ("a+b c", "%41%2f", "x&path=y#z", "q?;=,'\"", "\n"):
            await client.write(box, odd, odd.encode())
            assert await client.read(box, odd) == odd.encode()
        assert (await client.exec(box, "ls -1 | wc -l")).output == "7\n"
        with pytest.raises(FileNotFoundError):
            await client.read(box, "nowhere")
        with pytest.raises(IsADirectoryError):
            await client.read(box, "/tmp")
        with pytest.raises(OSError):
            await client.write(box, "/proc/1/nothing", b"x")
        with pytest.raises(NodeError) as refused:
            await client.read("nope", "x")
        assert refused.value.status == 404

    in_box(node, work)


def test_limits_bind(node):
    async def run():
        async with node.client() as client:
            box = (await client.create("host", limits=Limits(disk_mb=16))).container_id
            assert (await client.exec(box, "head -c 40000000 /dev/zero > big")).code != 0
            assert (await client.exec(box, "echo \ud800\ue000")).output == "?\ue000\n"
            await client.destroy(box)
            await client.destroy(box)
            assert await client.health() and "host" in await client.images()
            assert await client.renew({"nobody": 5}) == ["nobody"]
            with pytest.raises(NodeError) as refused:
                await client.exec(box, "true")
            assert refused.value.status == 410

    asyncio.run(run())


def test_nobody_there_is_told_after_some_patience():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    async def run():
        async with NodeClient(f"http://127.0.0.1:{port}", "t", patience=0.3) as client:
            assert not await client.health()
            await client.exec("box", "true")

    with pytest.raises(NodeError, match="does not answer") as error:
        asyncio.run(run())
    assert error.value.status == 0


def test_sigterm_drains(tmp_path):
    with node_process(tmp_path, "--grace=60") as node:
        box = node.create()

        async def run():
            async with node.client() as client:
                begun = asyncio.Event()
                command = "echo begun; sleep 8; echo ended"
                short = asyncio.create_task(client.exec(box, command, on_output=lambda _: begun.set()))
                await begun.wait()
                node.process.send_signal(signal.SIGTERM)
                while await client.health():  # noqa: ASYNC110 - it is another process
                    await asyncio.sleep(0.05)
                with pytest.raises(NodeError) as refused:
                    await client.create("host")
                assert refused.value.status == 503
                assert (await short).output == "begun\nended\n"

        asyncio.run(run())
        assert node.process.wait(timeout=120) == 0


def test_a_command_past_the_grace_is_killed(tmp_path):
    with node_process(tmp_path) as node:
        box = node.create()
        node.sh(box, "nohup sleep 4242.25 > /dev/null 2>&1 &")

        async def run():
            async with node.client() as client:
                long = asyncio.create_task(client.exec(box, "sleep 4242.5"))
                await asyncio.to_thread(wait_for, lambda: sleepers(b"4242.5"))
                node.process.send_signal(signal.SIGTERM)
                with pytest.raises(NodeError) as ended:
                    await long
                assert ended.value.status in (410, 0)

        asyncio.run(run())
        assert node.process.wait(timeout=120) == 0
        wait_for(lambda: not sleepers(b"4242.25") and not sleepers(b"4242.5"))


def test_kill_9_leaves_no_process_and_a_restart_knows_nothing(tmp_path):
    with node_process(tmp_path) as node:
        box = node.create()
        node.sh(box, "nohup sleep 4343.25 > /dev/null 2>&1 &")
        wait_for(lambda: sleepers(b"4343.25"))
        node.process.kill()
        wait_for(lambda: not sleepers(b"4343.25"))
        token = node.token
    with node_process(tmp_path) as node:
        assert node.token == token
        assert node.post("/container/exec", {"container_id": box, "command": "true"})[0] == 404


def sleepers(argument):
    """The processes of this machine with such an argument."""
    found = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True).stdout
    return [line for line in found.splitlines() if argument in line.split()]
