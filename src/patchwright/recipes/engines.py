"""The engine a configuration asks for: one, or several as one; running servers, or such that are started."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from patchwright.engine.base import Engine
from patchwright.engine.config import EngineConfig
from patchwright.engine.http import HttpEngine
from patchwright.engine.launch import launcher, require_python
from patchwright.engine.process import ProcessEngine
from patchwright.engine.replicas import Bounds, Replicas, Start
from patchwright.engine.sglang import SglangEngine
from patchwright.engine.vllm import VllmEngine
from patchwright.errors import ConfigError, EngineError

__all__ = ["PLACES", "open_engine", "starts"]

_WHERE = ("url", "replicas", "python", "gpus", "logs", "start_seconds", "load_seconds")
_HOW = ("transfer", "transfer_address")
PLACES = tuple(f"line.engine.{name}" for name in (*_WHERE, *_HOW))
"""What says where engines are and how many, not what they sample: a resumed run may be given others."""

_SERVERS: dict[str, type[HttpEngine]] = {"vllm": VllmEngine, "sglang": SglangEngine}


@asynccontextmanager
async def open_engine(
    model: Path, config: EngineConfig, *, updates: bool = True, say: Callable[[str], None] | None = None
) -> AsyncIterator[Engine]:
    """The engine on a model folder: the local one in its own process, servers that have the same model, or
    servers that are started; several are one. `say` is told of those that fail and return.

    Without `updates` nobody can replace the weights of servers that are started. Raises ConfigError (an API
    is no engine) or EngineError.
    """
    engine = await _engine(model, config, updates, say)
    try:
        yield engine
    finally:
        await engine.close()


async def _engine(
    model: Path, config: EngineConfig, updates: bool, say: Callable[[str], None] | None
) -> Engine:
    found = starts(model, config, updates=updates)
    if len(found) == 1 and (config.urls or (config.use == "local" and updates)):
        return await found[0]()  # one that trains is not begun anew: the run is, from its last step
    if not config.urls and config.use in _SERVERS:
        await asyncio.to_thread(require_python, config)
        if say is not None:
            kind = _SERVERS[config.use].name
            say(f"starting {kind} ({config.replicas}), which may take minutes; its logs are in {config.logs}")
    bounds = Bounds(start=config.start_seconds, load=config.load_seconds)
    return await Replicas.open(found, bounds=bounds, say=say)


def starts(model: Path, config: EngineConfig, *, updates: bool = True) -> list[Start]:
    """What starts or connects each of the engines a configuration asks for, as `Replicas` takes it.

    Raises ConfigError.
    """
    if config.use == "openai":
        raise ConfigError(
            '`line.engine.use` is "openai": an API gives text and no tokens, so nothing can be trained on '
            "it; use `local`, `vllm` or `sglang`"
        )
    if config.use == "local":
        if config.transfer == "broadcast":
            raise ConfigError(
                '`line.engine.transfer` is "broadcast", which is for `vllm` and `sglang` servers; the local '
                "engine reads the folder"
            )
        seeds = range(config.seed, config.seed + config.replicas)  # the same one would draw the same, twice
        return [partial(_local, model, config.model_copy(update={"seed": seed})) for seed in seeds]
    if config.urls and config.replicas > 1:
        raise ConfigError(
            "`engine.url` names servers that run and `engine.replicas` counts servers to start; leave one out"
        )
    kind = _SERVERS[config.use]
    if not updates:
        config = config.model_copy(update={"transfer": "folder"})
    if config.urls:
        found = [config.model_copy(update={"url": url}) for url in config.urls]
        connect = kind.connect if len(found) == 1 else partial(_one_of, kind)
        return [partial(connect, one, updates=updates) for one in found]
    return [launcher(model, config, number, updates=updates) for number in range(config.replicas)]


async def _one_of(kind: type[HttpEngine], config: EngineConfig, *, updates: bool) -> Engine:
    """Connect one of several servers: that it does not answer is no mistake, it may yet."""
    try:
        return await kind.connect(config, updates=updates)
    except ConfigError as error:
        if isinstance(error.__cause__, EngineError):
            raise EngineError(str(error)) from None
        raise


async def _local(model: Path, config: EngineConfig) -> Engine:
    return await asyncio.to_thread(ProcessEngine, model, config=config)  # loading takes seconds
