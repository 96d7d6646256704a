"""A server in front of a registry: passes requests on, and misbehaves as told. One fault, one request."""

import base64
import json
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

import httpx

Fault = Callable[["_Handler", httpx.Response], None]
TOKEN, LOGIN = "t0ken", "Basic " + base64.b64encode(b"ann:s3cret").decode()


class FlakyRegistry:
    """Use in `with`. `faults` are taken by requests for blobs, `manifest_faults` by those for manifests."""

    def __init__(self, behind: str) -> None:
        self.behind = behind
        self.faults: deque[Fault] = deque()
        self.manifest_faults: deque[Fault] = deque()
        self.seen: list[tuple[float, str, str]] = []
        """When, path, and Range header of every request."""
        self.login: str | None = None
        """When set, tokens are asked for, and given for this login only ("" takes anybody)."""
        self.delay = 0.0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.flaky = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.client = httpx.Client(trust_env=False, timeout=60)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.client.close()

    def paths(self, part: str) -> list[str]:
        return [path for _, path, _ in self.seen if part in path]

    def ranges(self) -> list[str]:
        return [wanted for _, path, wanted in self.seen if "/blobs/" in path and wanted]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self.answer(405, {}, b"")

    def do_GET(self) -> None:
        flaky: FlakyRegistry = self.server.flaky  # type: ignore[attr-defined]
        flaky.seen.append((time.monotonic(), self.path, self.headers.get("Range", "")))
        time.sleep(flaky.delay)
        if flaky.login is not None and not self._welcome(flaky):
            return
        headers = {key: ", ".join(self.headers.get_all(key, [])) for key in ("Accept", "Range")}
        headers = {key: value for key, value in headers.items() if value}
        reply = flaky.client.get(flaky.behind + self.path, headers=headers)
        faults = flaky.faults if "/blobs/" in self.path else flaky.manifest_faults
        try:
            fault = faults.popleft()
        except IndexError:  # another request may have taken the last
            fault = pass_on
        fault(self, reply)

    def _welcome(self, flaky: FlakyRegistry) -> bool:
        given = self.headers.get("Authorization", "")
        if self.path.startswith("/token"):
            if given == flaky.login:
                self.answer(200, {}, json.dumps({"token": TOKEN}).encode())
            else:
                self.answer(401, {}, b"{}")
            return False
        if given == f"Bearer {TOKEN}":
            return True
        wish = f'Bearer realm="{flaky.url}/token",service="test",scope="repository:a:pull"'
        self.answer(401, {"WWW-Authenticate": wish}, b"{}")
        return False

    def answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def pass_on(handler: _Handler, reply: httpx.Response) -> None:
    kept = ("content-type", "content-range", "docker-content-digest")
    handler.answer(reply.status_code, {k: v for k, v in reply.headers.items() if k in kept}, reply.content)


def refuse(status: int, **headers: str) -> Fault:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return lambda handler, reply: handler.answer(status, named, b"")


def cut(after: float) -> Fault:
    """Hang up when this share of the body has gone out."""

    def fault(handler: _Handler, reply: httpx.Response) -> None:
        handler.send_response(reply.status_code)
        handler.send_header("Content-Length", str(len(reply.content)))
        if "content-range" in reply.headers:
            handler.send_header("Content-Range", reply.headers["content-range"])
        handler.end_headers()
        handler.wfile.write(reply.content[: int(len(reply.content) * after)])
        handler.close_connection = True

    return fault


def spoil(handler: _Handler, reply: httpx.Response) -> None:
    """One bit is wrong."""
    body = bytearray(reply.content)
    body[len(body) // 2] ^= 1
    handler.answer(200, {"Content-Type": reply.headers.get("content-type", "")}, bytes(body))


def whole(handler: _Handler, reply: httpx.Response) -> None:
    """No ranges here: the whole blob, whatever was asked for."""
    flaky: FlakyRegistry = handler.server.flaky  # type: ignore[attr-defined]
    handler.answer(200, {}, flaky.client.get(flaky.behind + handler.path).content)


def redirect(target: str) -> Fault:
    return lambda handler, reply: handler.answer(307, {"Location": target + handler.path}, b"")


def endless(handler: _Handler, reply: httpx.Response) -> None:
    """More than was promised, without a length."""
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(reply.content + b"x" * (1 << 20))
    handler.close_connection = True
