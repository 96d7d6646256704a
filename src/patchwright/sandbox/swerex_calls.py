"""Calls of the HTTP server that swe-rex starts in a box (`POST /execute`, `POST /upload`), and of the program
`once.py` through it.

They are made here and not by swe-rex's own client, which gives up after 300 seconds, reads answers of any
size, and builds what the server names as the exception: box output is hostile.
"""

from __future__ import annotations

import base64
import functools
import json
import posixpath
import secrets
from collections.abc import Mapping
from typing import Any, Literal

import aiohttp
from pydantic import Base64Bytes, BaseModel, Field, ValidationError

from patchwright.errors import SandboxError
from patchwright.sandbox.bundle import bundled

INSIDE = ("archive", "files", "marked", "once", "output")
"""The modules of this package that run in a box."""
_START = "from patchwright.sandbox.once import main\nmain()\n"
_INLINE = 64 * 1024
"""Most bytes of a request that go along as an argument; Linux takes 128 KiB in one, base64 adds a third."""
_ANSWER = 16 * 1024 * 1024
"""Most bytes of an answer."""
_GRACE = 60.0
"""Seconds a call may take over what it waits for."""
_TRANSFER = 600.0
"""Seconds an upload may take."""
_FOLDERS = ("/var/lib", "/tmp")
"""Where the program may lie: the first that the server may write to. Commands empty /tmp now and then."""


class Reply(BaseModel):
    """What `once.py` answers, of which a box may have made anything."""

    errno: int | None = Field(default=None, gt=0, lt=1 << 16)
    error: str = ""
    state: Literal["done", "running", "lost"] = "done"
    code: int = 0
    timed_out: bool = False
    omitted: int = Field(default=0, ge=0)
    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    head: Base64Bytes = b""
    tail: Base64Bytes = b""
    chunk: Base64Bytes = b""
    missed: int = Field(default=0, ge=0)
    size: int = Field(default=0, ge=0)
    body: Base64Bytes = b""


class Server:
    """The swe-rex server of one box; every call raises SandboxError when it does not answer as it should.

    Example: `reply = await server.call({"op": "read", "workdir": "/testbed", "path": "a.txt"})`
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        # every call on a connection of its own: a server that closes an idle one would void an attempt
        connector = aiohttp.TCPConnector(force_close=True)
        self._http = aiohttp.ClientSession(connector=connector, headers=headers)
        self._name = f"patchwright-box-{secrets.token_hex(8)}"
        self._folder = ""

    @property
    def name(self) -> str:
        """Of the program's folder; no other box has it."""
        return self._name

    async def install(self) -> None:
        """Send the program. Raises SandboxError."""
        for parent in _FOLDERS:
            self._folder = posixpath.join(parent, self._name)
            try:
                await self._upload("tool.pyz", program())
                return
            except Refused:
                if parent == _FOLDERS[-1]:
                    raise

    async def call(self, header: Mapping[str, Any], body: bytes = b"", *, patience: float = 0.0) -> Reply:
        """One operation of the program, which may take `patience` seconds and a grace."""
        request = json.dumps(header).encode() + b"\n" + body
        argument = base64.b64encode(request).decode()
        if len(request) > _INLINE:
            argument = "@request"
            await self._upload("request", request)
        tool = posixpath.join(self._folder, "tool.pyz")
        command = {"command": ["python3", "-I", "-S", tool, argument], "cwd": "/"}
        return _reply(await self._post("execute", patience + _GRACE, json=command))

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _upload(self, name: str, content: bytes) -> None:
        form = aiohttp.FormData()
        form.add_field("file", content, filename=name)
        form.add_field("target_path", posixpath.join(self._folder, name))
        form.add_field("unzip", "false")
        await self._post("upload", _TRANSFER, data=form)

    async def _post(self, path: str, limit: float, **given: Any) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=limit)
        try:
            async with self._http.post(f"{self._url}/{path}", timeout=timeout, **given) as response:
                content = await _bounded(response)
                status = response.status
        except TimeoutError:
            raise SandboxError(f"the swe-rex server of a box did not answer within {limit:.0f} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise SandboxError(f"the swe-rex server of a box is gone: {_brief(error)}") from None
        return _answer(status, content)


class Refused(SandboxError):
    """The server answered with an error."""


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > _ANSWER:
            raise SandboxError(f"the swe-rex server of a box answered with more than {_ANSWER} bytes")
    return bytes(content)


def _answer(status: int, content: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(content)
    except (ValueError, RecursionError):
        answer = content.decode("utf-8", "replace")
    if status != 200:
        raise Refused(f"the swe-rex server of a box answered {status}: {_brief(_message(answer))}")
    if not isinstance(answer, dict):
        raise SandboxError("the swe-rex server of a box answered with something else than an object")
    return answer


def _message(answer: Any) -> Any:
    """What an error of the server says: FastAPI's, or that of an exception it met."""
    if isinstance(answer, dict):
        met = answer.get("swerexception")
        return met.get("message") if isinstance(met, dict) else answer.get("detail", answer)
    return answer


def _reply(answer: Mapping[str, Any]) -> Reply:
    """What the program said. Raises SandboxError when it did not run."""
    if answer.get("exit_code") != 0:
        said = str(answer.get("stderr", "")).strip()
        raise SandboxError(
            f"a box did not do what it was asked (it needs python3, 3.7 or newer): {said[-300:]}"
        )
    try:
        reply = Reply.model_validate_json(str(answer.get("stdout", "")))
    except ValidationError:
        raise SandboxError("the program in a box gave an answer that cannot be read") from None
    if reply.error and reply.errno is None:
        raise SandboxError(f"a box did not do what it was asked: {_brief(reply.error)}")
    return reply


def _brief(said: object) -> str:
    return " ".join(str(said).split())[:300] or type(said).__name__


@functools.cache
def program() -> bytes:
    """`once.py` and what it imports, as a zip that `python3` runs."""
    return bundled(INSIDE, start=_START)
