"""`patchwright serve` and `patchwright gateway serve`: a policy behind an OpenAI-compatible endpoint."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

from patchwright.config import Config
from patchwright.errors import ConfigError
from patchwright.gateway.server import Gateway
from patchwright.recipes.assembly import LineConfig, open_gateway
from patchwright.recipes.progress import View
from patchwright.recipes.stopping import stopping
from patchwright.store import Run
from patchwright.types import Endpoint, Trajectory, Turn

__all__ = ["Address", "record", "serve"]

STAGE = "recorded"


class Address(Config):
    """Where to listen."""

    host: str = "127.0.0.1"
    """Address to listen on; anything but loopback lets other machines in, behind the key."""
    port: int = 8000
    """Port to listen on; 0 takes a free one."""
    api_key: str = ""
    """The key clients must send; empty makes a random one."""


async def serve(config: LineConfig, model: Path, address: Address, view: View) -> None:
    """Serve a model until SIGINT or SIGTERM. Nothing is recorded."""
    async with AsyncExitStack() as stack:
        gateway = await _gateway(stack, config, model, address, view)
        async with stopping() as stop:
            _announce(view, gateway.endpoint, known=bool(address.api_key))
            await stop.wait()


async def record(
    config: LineConfig, model: Path, address: Address, folder: Path, name: str, view: View
) -> None:
    """Serve one recording session until SIGINT or SIGTERM, for an agent started by hand.

    The run in `folder` holds its turns, ungraded, as trajectory `name`; each is stored as it is sampled.
    Raises ConfigError when the run has that trajectory.
    """
    stored = {"line": config.model_dump(mode="json"), "model": str(model)}
    async with AsyncExitStack() as stack:
        run = stack.enter_context(Run.create_or_open(folder, stored))
        if run.entry(name):
            raise ConfigError(f"run {folder} holds a session {name!r} already; give another --session")
        gateway = await _gateway(stack, config, model, address, view)

        def keep(_: Turn) -> None:
            recorded = Trajectory(id=name, task_id="", turns=session.turns, messages=session.messages)
            run.put(recorded, stage=STAGE, step=0, version=0)

        session = gateway.session(name, sampling=config.sampling.sampling(), on_turn=keep)
        async with stopping() as stop:
            _announce(view, session.endpoint, known=False)
            await stop.wait()
        view.say(f"recorded {len(session.turns)} turns: patchwright show {folder} {name}")


async def _gateway(
    stack: AsyncExitStack, config: LineConfig, model: Path, address: Address, view: View
) -> Gateway:
    host, port, key = address.host, address.port, address.api_key
    opened = open_gateway(config, model, host=host, port=port, api_key=key, say=view.say)
    return await stack.enter_async_context(opened)


def _announce(view: View, endpoint: Endpoint, *, known: bool) -> None:
    view.say(f"base_url {endpoint.base_url}")
    view.say(f"api_key  {'as given' if known else endpoint.api_key}")
    view.say(f"model    {endpoint.model}")
