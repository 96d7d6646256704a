"""A headless Chromium driven by its DevTools protocol, over the HTTP client the package has anyway."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-extensions", "--remote-debugging-port=0",
    "--force-color-profile=srgb", "--hide-scrollbars",
)  # fmt: skip


class Page:
    """One tab. Collects what goes wrong in it: exceptions, errors in the console, refused content."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._count = socket, 0
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.errors: list[str] = []
        self.asked: list[str] = []
        """Every address that was asked for."""

    async def listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                self._waiting.pop(said["id"]).set_result(said)
            else:
                self._heard(said["method"], said["params"])

    def _heard(self, what: str, more: dict[str, Any]) -> None:
        if what == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(more["exceptionDetails"])[:600])
        elif what == "Runtime.consoleAPICalled" and more["type"] in ("error", "warning"):
            self.errors.append(json.dumps(more["args"])[:600])
        elif what == "Log.entryAdded" and more["entry"]["level"] in ("error", "warning"):
            self.errors.append(more["entry"]["text"] + " " + more["entry"].get("url", ""))
        elif what == "Network.requestWillBeSent":
            self.asked.append(more["request"]["url"])

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        self._count += 1
        self._waiting[self._count] = asyncio.get_running_loop().create_future()
        answer = self._waiting[self._count]
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        said = await asyncio.wait_for(answer, 60)
        assert "error" not in said, said
        return said["result"]

    async def js(self, expression: str) -> Any:
        """The value of an expression."""
        given = {"expression": expression, "awaitPromise": True, "returnByValue": True}
        found = await self.call("Runtime.evaluate", **given)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true."""
        for _ in range(1200):
            with contextlib.suppress(AssertionError):  # the page is about to be another
                if value := await self.js(expression):
                    return value
            await asyncio.sleep(0.05)
        raise AssertionError(
            f"{expression} never came; errors {self.errors}; " + await self.js("document.body.innerText")
        )

    async def open(self, url: str, until: str = "document.querySelector('main h1')") -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"document.readyState === 'complete' && !!({until})")

    async def go(self, hash: str, until: str) -> None:
        """To another page of the viewer."""
        await self.js(f"location.hash = {json.dumps(hash)}")
        await self.until(f"!!({until})")

    async def key(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        codes = {"Escape": 27, "Enter": 13, "Tab": 9, "ArrowRight": 39}
        code = {"windowsVirtualKeyCode": codes.get(key, 0)}
        await self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text, **code)
        await self.call("Input.dispatchKeyEvent", type="keyUp", key=key, **code)

    async def size(self, width: int, height: int) -> None:
        given = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.call("Emulation.setDeviceMetricsOverride", **given)

    async def dark(self, on: bool = True) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, file: Path) -> None:
        found = await self.call("Page.captureScreenshot", format="png")
        file.write_bytes(base64.b64decode(found["data"]))


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A fresh profile and one tab; ended with the block."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
        try:
            async with aiohttp.ClientSession() as client, _tab(client, Path(profile)) as page:
                yield page
        finally:
            process.terminate()
            await asyncio.wait_for(process.wait(), 120)


@contextlib.asynccontextmanager
async def _tab(client: aiohttp.ClientSession, profile: Path) -> AsyncIterator[Page]:
    file = profile / "DevToolsActivePort"
    for _ in range(2400):
        if file.exists() and file.read_text().strip():
            break
        await asyncio.sleep(0.05)
    port = file.read_text().split()[0]
    found: list[dict[str, Any]] = []
    while not found:  # the port is told before there is a page
        async with client.get(f"http://127.0.0.1:{port}/json/list") as answer:
            found = [one for one in await answer.json() if one["type"] == "page"]
        await asyncio.sleep(0.05)
    [tab] = found
    async with client.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
        page = Page(socket)
        listening = asyncio.create_task(page.listen())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.call(f"{domain}.enable")
        await page.size(1280, 820)
        await page.dark(False)
        yield page
        listening.cancel()
