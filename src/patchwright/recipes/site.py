"""Where the parts of a run of reinforcement learning are. The recipe (`rl.py`) takes them as they come: from
this machine (`open_here`), or from whoever else has an `OpenSite`, as a Ray cluster (`integrations.ray`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from patchwright.engine.base import Engine
from patchwright.recipes.agents import open_agent
from patchwright.recipes.assembly import LineConfig, open_boxes, open_line
from patchwright.recipes.engines import open_engine
from patchwright.recipes.parity import refuse_truncation
from patchwright.render import Renderer
from patchwright.rollout.events import Events
from patchwright.rollout.rollout import Attempts
from patchwright.train.config import TrainConfig
from patchwright.train.worker import TrainerProcess

__all__ = ["Keep", "OpenSite", "Site", "Wanted", "open_here"]

Keep = Callable[[str, Mapping[str, bytes]], None]
"""As `Line.keep`."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a run asks of its site."""

    line: LineConfig
    train: TrainConfig
    model: Path
    keep: Keep
    say: Callable[[str], None]
    """Told in a sentence of what was lost, and what is back."""
    events: Events | None = None
    """As `Line.events`."""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The parts, opened."""

    line: Attempts
    engine: Engine
    """What the attempts are answered by: weights are loaded here."""
    trainer: Callable[[], AbstractAsyncContextManager[TrainerProcess]]
    """Starts the trainer, on the model's folder."""
    restarts: int = 0
    """How often it may be started again after it died."""


class OpenSite(Protocol):
    """Opens a site, and closes it with everything on it."""

    def __call__(self, wanted: Wanted) -> AbstractAsyncContextManager[Site]:
        """Raises ConfigError, or the InfraError of what could not be opened."""
        ...


@asynccontextmanager
async def open_here(wanted: Wanted) -> AsyncIterator[Site]:
    """Everything on this machine, but for the servers that the configuration names."""
    config, model = wanted.line, wanted.model
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(open_agent(config.agent))
        backend = await stack.enter_async_context(open_boxes(config.sandbox))
        engine = await stack.enter_async_context(open_engine(model, config.engine, say=wanted.say))
        refuse_truncation(engine, config.sampling)
        opened = open_line(backend, agent, engine, Renderer.load(str(model)), history=config.history)
        line = replace(await stack.enter_async_context(opened), keep=wanted.keep, events=wanted.events)
        yield Site(line=line, engine=engine, trainer=lambda: TrainerProcess(model, wanted.train))
