"""Starts model servers on this machine, each in an environment of its own, and ends them.

A server listens on loopback, on a free port, writes to a log of its own, and lives no longer than its parent
(`engine/warden.py`). `engine/replicas.py` starts one again that died: `launcher` makes what it calls.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from patchwright.engine import warden
from patchwright.engine.base import Engine
from patchwright.engine.config import EngineConfig
from patchwright.engine.http import HttpEngine
from patchwright.engine.replica import Start
from patchwright.engine.sglang import SglangEngine
from patchwright.engine.vllm import EXTENSION, INSIDE, VllmEngine
from patchwright.errors import ConfigError, EngineError

__all__ = ["Order", "Place", "Server", "launcher", "require_python", "sglang_order", "vllm_order"]

_POLL = 0.25
"""Seconds between two questions whether a server is ready."""
_STOP = 25.0
"""Seconds a server may take to end; its warden kills it before."""
_TAIL = 400
"""Characters of a log that are quoted."""
_LOOK = 60.0
"""Seconds a Python may take to say whether it has a package."""
_FOREIGN = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
"""What in this environment is about this Python, not the server's."""


@dataclass(frozen=True, slots=True)
class Order:
    """How one server is started."""

    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of this process."""


class Server:
    """A running server. Blocks a moment while it is started; `ready` waits until it answers.

    Example: `server = Server("vLLM", vllm_order(model, config, port=8001), Path("logs/vllm-0.log"))`
    """

    def __init__(self, name: str, order: Order, log: Path) -> None:
        self.name, self.log = name, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(warden.__file__), *order.command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_environment(order),
                start_new_session=True,
            )

    async def ready(self, url: str, bound: float) -> None:
        """Wait until `url` answers 200. Raises EngineError when the server ends first, or past the bound."""
        try:
            async with asyncio.timeout(bound), aiohttp.ClientSession() as client:
                while not await _answers(client, url):
                    if self._process.poll() is not None:
                        raise EngineError(f"{self.name} ended before it could answer: {self._tail()}")
                    await asyncio.sleep(_POLL)
        except TimeoutError:
            raise EngineError(f"{self.name} does not answer after {bound:g} s; see {self.log}") from None

    async def stop(self) -> None:
        """End it and all it started. Stopping twice is allowed."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        await asyncio.to_thread(self._wait)

    def _wait(self) -> None:
        try:
            self._process.wait(_STOP)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tail(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - _TAIL))
            text = log.read().decode(errors="replace")
        return f"{' '.join(text.split())} ({self.log})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """What one server of several is told beside the configuration.

    Example: `Place(number=0, port=8001, key="secret")`
    """

    number: int
    port: int
    key: str = ""
    """What whoever asks it for tokens must send; SGLang takes none that others could not see."""
    updates: bool = False
    """Its weights may be replaced, by whoever reaches its port: vLLM then takes developers' calls."""


def vllm_order(model: Path, config: EngineConfig, place: Place) -> Order:
    """How vLLM is started. Raises ConfigError when there are too few GPUs for it."""
    command = [config.python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model.resolve())]
    command += ["--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(place.port)]
    command += ["--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details"]
    command += ["--seed", str(config.seed + place.number)]  # the same one would draw the same, twice
    command += ["--max-model-len", str(config.max_context)] * bool(config.max_context)
    command += ["--tensor-parallel-size", str(config.gpus)] * (config.gpus > 1)
    environment = _gpus(config, place.number) | {"VLLM_NO_USAGE_STATS": "1"}
    environment |= {"VLLM_API_KEY": place.key} if place.key else {}
    environment |= {"VLLM_SERVER_DEV_MODE": "1"} if place.updates else {}
    if config.transfer == "broadcast":
        command += ["--worker-extension-cls", EXTENSION]
        environment["PYTHONPATH"] = str(INSIDE)
    return Order((*command, *config.args), environment)


def sglang_order(model: Path, config: EngineConfig, place: Place) -> Order:
    """How SGLang is started. Raises ConfigError when there are too few GPUs for it."""
    command = [config.python, "-m", "sglang.launch_server", "--model-path", str(model.resolve())]
    command += ["--served-model-name", "policy", "--host", "127.0.0.1", "--port", str(place.port)]
    command += ["--random-seed", str(config.seed + place.number)]
    command += ["--context-length", str(config.max_context)] * bool(config.max_context)
    command += ["--tp-size", str(config.gpus)] * (config.gpus > 1)
    return Order((*command, *config.args), _gpus(config, place.number))


def launcher(model: Path, config: EngineConfig, number: int, *, updates: bool) -> Start:
    """What starts server `number` of a model folder; its weights can be replaced if there are `updates`."""
    engine, order = _KINDS[config.use]

    async def start() -> Engine:
        with _reserved() as port:
            place = Place(number=number, port=port, key=secrets.token_urlsafe(24), updates=updates)
            log = Path(config.logs) / f"{config.use}-{number}.log"
            server = Server(engine.name, order(model, config, place), log)
            url = f"http://127.0.0.1:{port}"
            try:
                await server.ready(f"{url}/health", config.start_seconds)
                here = config.model_copy(update={"url": url, "served_name": "policy", "header_env": {}})
                return await engine.connect(here, key=place.key, then=server.stop, updates=updates)
            except BaseException:
                await server.stop()
                raise

    return start


def require_python(config: EngineConfig) -> None:
    """Raises ConfigError unless `engine.python` names a Python that has the server."""
    name, kind = config.use, _KINDS[config.use][0].name
    if not config.python:
        raise ConfigError(
            f"nothing says where {kind} is: set `engine.url` to the address of a server that runs, or "
            f"`engine.python` (serve: --engine-python) to the Python that has {kind}, to start one"
        )
    look = f"import importlib.util, sys; sys.exit(not importlib.util.find_spec({name!r}))"
    try:
        done = subprocess.run([config.python, "-I", "-c", look], capture_output=True, timeout=_LOOK)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"`engine.python` is {config.python!r}, which does not run: {error}") from None
    if done.returncode:
        raise ConfigError(
            f"`engine.python` is {config.python!r}, which has no {kind}; name the Python of the environment "
            f"it is installed in, such as /opt/{name}/bin/python"
        )


_KINDS: dict[str, tuple[type[HttpEngine], Callable[[Path, EngineConfig, Place], Order]]] = {
    "vllm": (VllmEngine, vllm_order),
    "sglang": (SglangEngine, sglang_order),
}


def _gpus(config: EngineConfig, number: int) -> dict[str, str]:
    """The GPUs of server `number`: the next ones of those this process may use."""
    if not config.gpus:
        return {}
    first, last = number * config.gpus, (number + 1) * config.gpus
    told = os.environ.get("CUDA_VISIBLE_DEVICES")
    mine = [str(gpu) for gpu in range(last)] if told is None else [gpu for gpu in told.split(",") if gpu]
    if len(mine) < last:
        raise ConfigError(
            f"server {number} would have GPUs {first} to {last - 1} of CUDA_VISIBLE_DEVICES={told!r}, which "
            "has too few; lower `engine.replicas` or `engine.gpus`"
        )
    return {"CUDA_VISIBLE_DEVICES": ",".join(mine[first:last])}


def _environment(order: Order) -> dict[str, str]:
    """This process's, with the server's Python first: it may call tools of its environment (compilers)."""
    own = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    tools = str(Path(order.command[0]).absolute().parent)
    return own | {"PATH": f"{tools}{os.pathsep}{own.get('PATH', '')}"} | dict(order.environment)


@contextmanager
def _reserved() -> Iterator[int]:
    """A free port that nobody else is given meanwhile: it stays bound, and whoever reuses addresses, as
    servers do, can listen there all the same."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield int(holder.getsockname()[1])


async def _answers(client: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with client.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError, OSError):
        return False
