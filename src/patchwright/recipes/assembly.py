"""Put the parts of the line together: sandbox backend, engine, gateway, agent, grader."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import Field

from patchwright.agent.base import Agent
from patchwright.config import Config, pick
from patchwright.engine.base import Engine
from patchwright.engine.config import EngineConfig
from patchwright.engine.openai import ApiModel
from patchwright.engine.scripted import ScriptedEngine
from patchwright.errors import ConfigError
from patchwright.fleet.client import PoolClient
from patchwright.fleet.pool_api import DEFAULT_POOL_PORT
from patchwright.fleet.remote import RemoteBackend
from patchwright.fleet.tokens import POOL_TOKEN, config_folder, read_token, trust
from patchwright.gateway.history import Policy
from patchwright.gateway.server import Gateway
from patchwright.grade.tests import Grader
from patchwright.images.config import ImagesConfig
from patchwright.recipes.agents import AgentConfig, open_agent
from patchwright.recipes.engines import open_engine
from patchwright.recipes.image_boxes import ImageBackend
from patchwright.render import Renderer
from patchwright.rollout.rollout import Line
from patchwright.sandbox.base import SandboxBackend
from patchwright.sandbox.select import open_backend
from patchwright.sandbox.swerex import SwerexBackend
from patchwright.sandbox.swerex_deploy import configured
from patchwright.types import Endpoint, Sampling


class SandboxConfig(Config):
    """Which boxes."""

    use: str = "namespace"
    """`namespace` (rootless, no daemon), `docker`, `process` (isolates nothing), `remote` (a pool's), or
    `swerex` (Modal, Fargate, Daytona and Docker by swe-rex), or `module:Class`, called without arguments."""
    image: str = ""
    """Docker, remote and swerex: the image of tasks that name none, with bash, git, python3 and pytest."""
    warm: int = Field(default=0, ge=0)
    """Docker only: containers kept started of each image and limits that were asked for lately (16 at most).
    Namespace boxes open in milliseconds and keep none; of remote ones, nodes and pool do (`--warm`)."""
    images: ImagesConfig = ImagesConfig()
    """Namespace only: the store of images that tasks name."""
    pool: str = f"http://127.0.0.1:{DEFAULT_POOL_PORT}"
    """Remote only: address of the pool."""
    token_file: str = ""
    """Remote only: file with the pool's token; that of a pool on this machine when empty."""
    ca_file: str = ""
    """Remote only: certificates, PEM, by which pool and nodes are known; the system's when empty."""
    direct: bool = True
    """Remote only: commands go to the nodes themselves; false sends everything through the pool."""
    wait: float = Field(default=600.0, ge=0)
    """Remote only: seconds a box may wait for a free slot."""
    deployment: dict[str, Any] = Field(default_factory=dict)
    """Swerex only: `type` (`docker`, `modal`, `fargate` or `daytona`), and the fields of swe-rex's
    configuration of it: `{ type = "modal", startup_timeout = 300.0 }`."""


class SamplingConfig(Config):
    """How the policy samples."""

    temperature: float = 1.0
    """Softmax temperature; 0 is greedy."""
    top_p: float = 1.0
    """Nucleus mass; 1 keeps every token."""
    max_tokens: int = 1024
    """Most tokens one reply may have."""

    def sampling(self) -> Sampling:
        """As the engine takes it."""
        return Sampling(temperature=self.temperature, top_p=self.top_p, max_tokens=self.max_tokens)


class LineConfig(Config):
    """The line without a trainer: what `rollout` and `eval` need."""

    sandbox: SandboxConfig = SandboxConfig()
    """The boxes."""
    agent: AgentConfig = AgentConfig()
    """Who works on the tasks."""
    engine: EngineConfig = EngineConfig()
    """The engine: local, or a server's."""
    sampling: SamplingConfig = SamplingConfig()
    """How the policy samples."""
    history: Policy = "splice"
    """A reply that comes back from the agent changed in form only (thinking dropped, arguments written
    differently): the model keeps what it sampled (`splice`), or sees the agent's version in a chain of its
    own (`fork`)."""
    concurrency: int = 32
    """Attempts in flight at once."""
    retries: int = 2
    """How often a void attempt is made again."""
    seed: int = 0
    """Seeds sampling and the order of tasks."""
    benchmark: str = ""
    """What must not be trained on: a task file, or rows as `tasks import` takes them. Empty: tasks imported
    from published test sets (SWE-bench Verified and the like, Terminal-Bench)."""
    allow_overlap: bool = False
    """Train on the tasks of the benchmark, or of published test sets, all the same."""


@asynccontextmanager
async def open_boxes(config: SandboxConfig) -> AsyncIterator[SandboxBackend]:
    """The sandbox backend, closed with every box at the end. Raises ConfigError or SandboxError."""
    backend = _backend(config)
    try:
        yield backend
    finally:
        await backend.close()


def _backend(config: SandboxConfig) -> SandboxBackend:
    if ":" in config.use:
        make: Callable[[], SandboxBackend] = pick(config.use, {}, key="line.sandbox.use")
        return make()
    if config.use == "remote":
        if config.warm:
            raise ConfigError(
                "`warm` is for docker boxes of this machine; for remote ones give `--warm` to `patchwright "
                "node serve` or `pool serve`"
            )
        token = read_token(Path(config.token_file) if config.token_file else config_folder() / POOL_TOKEN)
        verify = trust(Path(config.ca_file) if config.ca_file else None)
        client = PoolClient(config.pool, token, direct=config.direct, verify=verify)
        return RemoteBackend(client, image=config.image or "host", wait=config.wait)
    if config.use == "swerex":
        if config.warm:
            raise ConfigError("`warm` is for docker boxes of this machine; leave it out for `swerex`")
        return SwerexBackend(configured(config.deployment, config.image))
    backend = open_backend(config.use, image=config.image or None, warm=config.warm)
    return ImageBackend(backend, config.images) if config.use == "namespace" else backend


@asynccontextmanager
async def open_line(
    backend: SandboxBackend,
    agent: Agent,
    engine: Engine,
    renderer: Renderer,
    *,
    history: Policy = "splice",
) -> AsyncIterator[Line]:
    """The line over an engine, through a gateway of its own."""
    async with Gateway(engine, renderer, history=history) as gateway:
        yield Line(backend=backend, agent=agent, model=gateway, grade=Grader(backend, skip_empty=True))


@asynccontextmanager
async def open_expert_line(backend: SandboxBackend, agent: Agent, renderer: Renderer) -> AsyncIterator[Line]:
    """The line for experts: every attempt brings its own script, so nobody else is there to answer."""
    nobody = ScriptedEngine((), renderer.encode, renderer.decode, stop_id=renderer.stop_ids[0])
    async with open_line(backend, agent, nobody, renderer) as line:
        yield line


@asynccontextmanager
async def open_gateway(
    config: LineConfig,
    model: Path | Endpoint,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    api_key: str = "",
    say: Callable[[str], None] | None = None,
) -> AsyncIterator[Gateway]:
    """The gateway before a model: a folder's, through an engine, or an API's. `say` is told what befalls
    engines. Raises ConfigError or EngineError."""
    async with AsyncExitStack() as stack:
        api = _api(config, model)
        if api is not None:
            stack.push_async_callback(api.close)
            gateway = Gateway(api, model=api.name, host=host, port=port, api_key=api_key)
        else:
            renderer = Renderer.load(str(model))
            opened = open_engine(Path(str(model)), config.engine, updates=False, say=say)
            engine = await stack.enter_async_context(opened)
            gateway = Gateway(engine, renderer, host=host, port=port, api_key=api_key, history=config.history)
        yield await stack.enter_async_context(gateway)


def _api(config: LineConfig, model: Path | Endpoint) -> ApiModel | None:
    """The API that is to answer, if it is one; of how to sample it is told what the user said."""
    given = config.sampling.model_fields_set
    if isinstance(model, Endpoint):
        return ApiModel(model, retries=config.engine.retries, given=given)
    return ApiModel.of(config.engine, str(model), given) if config.engine.use == "openai" else None


@asynccontextmanager
async def assemble(
    config: LineConfig, model: Path | Endpoint, say: Callable[[str], None] | None = None
) -> AsyncIterator[Line]:
    """The whole line of `rollout` and `eval`: on a model folder, or against somebody's API. `say` is told
    what befalls engines."""
    async with AsyncExitStack() as stack:
        agent = await stack.enter_async_context(open_agent(config.agent))
        backend = await stack.enter_async_context(open_boxes(config.sandbox))
        gateway = await stack.enter_async_context(open_gateway(config, model, say=say))
        yield Line(backend=backend, agent=agent, model=gateway, grade=Grader(backend, skip_empty=True))
