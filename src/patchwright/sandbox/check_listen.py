"""Conformance checks of the port through which programs in a box are answered from outside."""

from __future__ import annotations

import asyncio
import hashlib

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox.base import Connection, Handler, Sandbox, SandboxBackend
from patchwright.sandbox.check_tools import a_box, expect, succeeds

_CLIENT = """
import hashlib, socket, sys
port, size = int(sys.argv[1]), int(sys.argv[2])
with socket.create_connection(("127.0.0.1", port), 20) as link:
    link.sendall(b"%d\\n" % size + b"u" * size)
    digest, got = hashlib.sha256(), 0
    while data := link.recv(65536):
        digest.update(data)
        got += len(data)
print(got, digest.hexdigest())
"""
_GONE = """
import socket, sys
link = socket.create_connection(("127.0.0.1", int(sys.argv[1])), 20)
link.sendall(b"hello")
link.close()
"""


async def a_port_is_answered(backend: SandboxBackend) -> None:
    """Programs reach a handler outside while a command runs; megabytes pass both ways, many at once."""
    async with a_box(backend) as box:
        port = await _listen(box, _echo)
        if port is None:
            return
        await box.write("client.py", _CLIENT.encode())
        size = 3_000_000
        one = f"python3 client.py {port} {size}"
        output = succeeds(await box.exec(f"for i in 1 2 3 4; do {one} & done; wait", timeout=60))
        wanted = f"{size} {hashlib.sha256(b'd' * size).hexdigest()}"
        expect(output.split("\n") == [wanted] * 4 + [""], output)


async def a_program_that_hangs_up_is_noticed(backend: SandboxBackend) -> None:
    """The handler hears of the end of a connection, and the box goes on."""
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def listen(connection: Connection) -> None:
        while data := await connection.read():
            heard.put_nowait(data)
        heard.put_nowait(b"")

    async with a_box(backend) as box:
        port = await _listen(box, listen)
        if port is None:
            return
        await box.write("gone.py", _GONE.encode())
        succeeds(await box.exec(f"python3 gone.py {port}"))
        async with asyncio.timeout(10):
            expect(await heard.get() == b"hello" and await heard.get() == b"", "the end was not told")
        succeeds(await box.exec("true"))


async def a_program_that_does_not_read(backend: SandboxBackend) -> None:
    """What nobody reads is not written without end; and it all ends with the box."""
    written = 0

    async def flood(connection: Connection) -> None:
        nonlocal written
        while True:
            await connection.write(b"x" * 65536)
            written += 65536

    async with a_box(backend) as box:
        port = await _listen(box, flood)
        if port is None:
            return
        hang = f"exec 3<>/dev/tcp/127.0.0.1/{port}; sleep 1"
        succeeds(await box.exec(hang))
        expect(0 < written < 64 << 20, written)
        succeeds(await box.exec("true"))


async def _echo(connection: Connection) -> None:
    """Read a line with a number, and that many bytes; answer as many."""
    got = b""
    while b"\n" not in got:
        got += await connection.read()
    line, _, rest = got.partition(b"\n")
    left = int(line) - len(rest)
    while left:
        left -= len(await connection.read())
    await connection.write(b"d" * int(line))


async def _listen(box: Sandbox, handler: Handler) -> int | None:
    """The port, or None where boxes cannot have one, which they must say."""
    try:
        return await box.listen(handler)
    except ConfigError as error:
        expect(len(str(error)) > 20, "a refusal must say why")
        return None


async def a_closed_box_does_not_listen(backend: SandboxBackend) -> None:
    """Asking a closed box raises SandboxError."""
    async with a_box(backend) as box:
        await box.close()
        try:
            await box.listen(_echo)
        except (SandboxError, ConfigError):
            return
        expect(False, "a closed box listens")


LISTENING = (
    a_port_is_answered,
    a_program_that_hangs_up_is_noticed,
    a_program_that_does_not_read,
    a_closed_box_does_not_listen,
)
"""Every check of this page."""
