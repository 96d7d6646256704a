"""`patchwright node serve`: a sandbox backend, the graders' parsers and the node server put together."""

from __future__ import annotations

import asyncio
import math
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
from patchwright.grade.diff import parse
from patchwright.grade.parsers import UnreadableLog, parser
from patchwright.grade.patch import apply_patch
from patchwright.grade.rules import judge
from patchwright.images.store import Store
from patchwright.recipes.assembly import SandboxConfig
from patchwright.recipes.image_boxes import ImageBackend
from patchwright.recipes.progress import View
from patchwright.recipes.stopping import stopping
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.sandbox.docker import DockerBackend
from patchwright.sandbox.select import open_backend
from patchwright.types import GradeState, Task, Tests, TestStatus

__all__ = ["NodeConfig", "apply", "decide", "open_machinery", "serve"]

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
    async with open_machinery(config.sandbox) as machinery, stopping() as stop:
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
        yield Machinery(backend=backend, probe=probe, images=images, apply=apply, decide=decide)
    finally:
        await backend.close()


async def apply(box: Sandbox, patch: str, cwd: str | None) -> str:
    """Apply a patch as `grade` does; what went wrong, or an empty text. Raises SandboxError."""
    diff = parse(patch)
    if diff.outside:
        return f"it reaches out of the repository, to {diff.outside}"
    if not diff.sections:
        return "there is no diff in it" if diff.wanted else ""
    return await apply_patch(box, _task("", "", (), (), workdir=cwd or "."), diff)


def _task(
    parser: str, rules: str, to_pass: Sequence[str], passing: Sequence[str], workdir: str = "."
) -> Task:
    """What the graders want to know of what is evaluated."""
    tests = Tests(
        command="", parser=parser, rules=rules, fail_to_pass=tuple(to_pass), pass_to_pass=tuple(passing)
    )
    return Task(id="evaluate", prompt="", workdir=workdir, tests=tests)


def decide(
    output: str, parser_name: str, rules: str, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]
) -> bool | None:
    """Whether the tests of an output pass: those that are named, as the rules have it; without names, one at
    least, and none failed.

    None when the output names no test, or cannot be read. Raises ConfigError for an unknown parser or rules.
    """
    found = judge(_task(parser_name, rules, fail_to_pass, pass_to_pass), output)
    if fail_to_pass or pass_to_pass:
        return None if found.state is GradeState.NO_TESTS_PARSED else found.state is GradeState.RESOLVED
    try:
        statuses = parser(parser_name)(output)
    except UnreadableLog:
        return None
    if not statuses:
        return None
    shown = statuses.values()
    return TestStatus.PASSED in shown and not any(status in _BAD for status in shown)


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
