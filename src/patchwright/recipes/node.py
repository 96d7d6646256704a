"""`patchwright node serve`: a sandbox backend, the graders' parsers and the node server put together."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from pydantic import Field

from patchwright.fleet.api import DEFAULT_PORT
from patchwright.fleet.audit import Audit, audit_file
from patchwright.fleet.node import Machinery, Node
from patchwright.fleet.node_server import NodeServer
from patchwright.fleet.serving import Address, Serving
from patchwright.fleet.tokens import NODE_TOKEN, check_exposure, config_folder, load_token
from patchwright.grade.parsers import UnreadableLog, parser
from patchwright.images.store import Store
from patchwright.recipes.assembly import SandboxConfig
from patchwright.recipes.image_boxes import ImageBackend
from patchwright.recipes.progress import View
from patchwright.sandbox.base import BoxSpec, SandboxBackend
from patchwright.sandbox.docker import DockerBackend
from patchwright.sandbox.select import open_backend
from patchwright.types import TestStatus

__all__ = ["NodeConfig", "decide", "open_machinery", "serve"]

_BAD = (TestStatus.FAILED, TestStatus.ERROR)


class NodeConfig(Address):
    """A node: where it listens, which boxes it makes, and for whom."""

    port: int = DEFAULT_PORT
    """Port to listen on; 0 takes a free one."""
    sandbox: SandboxConfig = SandboxConfig()
    """The boxes."""
    max_boxes: int = Field(default=64, gt=0)
    """Most boxes open at once; beyond them the answer is 503."""
    ttl: float = Field(default=math.inf, gt=0)
    """Seconds without use after which a box is closed, if its maker says nothing else."""
    grace: float = Field(default=10.0, ge=0)
    """Seconds that running commands have to end when the node is stopped."""
    token_file: Path | None = None
    """File of the node's bearer token; made if missing. Left out: `~/.config/patchwright/node.token`."""
    open: bool = False
    """Ask for no token; on loopback only."""
    plain_http: bool = False
    """Serve beyond loopback without TLS, on a network that is trusted."""
    audit: Path | None = None
    """File of the audit log; left out: `~/.local/state/patchwright/node-audit.jsonl`."""


async def serve(config: NodeConfig, view: View) -> None:
    """Serve boxes until SIGINT or SIGTERM, then drain. Raises ConfigError for an unsafe configuration."""
    tls = config.tls_cert is not None
    check_exposure(config.host, open_=config.open, tls=tls, plain_http=config.plain_http)
    token_file = config.token_file or config_folder() / NODE_TOKEN
    token = "" if config.open else load_token(token_file)
    audit = Audit(config.audit or audit_file("node-audit"))
    async with open_machinery(config.sandbox) as machinery, _stopping() as stop:
        node = Node(machinery, max_boxes=config.max_boxes, ttl=config.ttl)
        async with Serving(NodeServer(node, token, audit).app, config) as serving:
            await _announce(view, node, serving.url, token_file if token else None)
            reaper = asyncio.create_task(node.reap_forever())
            await stop.wait()
            reaper.cancel()
            view.say("draining")
            await node.drain(config.grace)
    audit.close()


@asynccontextmanager
async def open_machinery(config: SandboxConfig) -> AsyncIterator[Machinery]:
    """What a node is made of: the backend and how to ask it, closed at the end."""
    backend = open_backend(config.use, image=config.image or None, warm=config.warm)
    probe, images = _questions(backend, config)
    if config.use == "namespace":
        backend = ImageBackend(backend, config.images)
    try:
        yield Machinery(backend=backend, probe=probe, images=images, decide=decide)
    finally:
        await backend.close()


def decide(
    output: str, parser_name: str, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]
) -> bool | None:
    """Whether the tests of an output pass: all that are named; without names, one at least, and none failed.

    None when the output names no test, or cannot be read. Raises ConfigError for an unknown parser.
    """
    try:
        statuses = parser(parser_name)(output)
    except UnreadableLog:
        return None
    if not statuses:
        return None
    named = (*fail_to_pass, *pass_to_pass)
    if named:
        return all(statuses.get(name) is TestStatus.PASSED for name in named)
    found = statuses.values()
    return TestStatus.PASSED in found and not any(status in _BAD for status in found)


def _questions(
    backend: SandboxBackend, config: SandboxConfig
) -> tuple[Callable[[], Awaitable[str | None]], Callable[[], Awaitable[list[str]]]]:
    """Can boxes be made, and of which images."""
    if isinstance(backend, DockerBackend):
        return backend.available, backend.images

    async def probe() -> None:
        box = await backend.open(BoxSpec())  # no kernel setting says as much; it costs milliseconds
        await box.close()

    async def images() -> list[str]:
        store = Store(Path(config.images.store).expanduser())
        stored = store.images() if config.use == "namespace" else []
        return ["host", *sorted(image.name for image in stored)]

    return probe, images


async def _announce(view: View, node: Node, url: str, token_file: Path | None) -> None:
    health = await node.health()  # also removes what a dead node left behind
    view.say(f"node   {url}")
    view.say(f"token  {token_file or 'none is asked for'}")
    if not health.ok:
        view.say(f"boxes cannot be made yet: {health.reason}")


@asynccontextmanager
async def _stopping() -> AsyncIterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
