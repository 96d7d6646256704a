"""Starts and stops what swe-rex deploys: a container here or in a cloud, with its server inside.

swe-rex sleeps, pulls and runs programs without leaving the event loop, so that each start and stop has a
thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from patchwright.config import nearest
from patchwright.errors import ConfigError, SandboxError

if TYPE_CHECKING:
    from swerex.deployment.abstract import AbstractDeployment

T = TypeVar("T")
Deploy = Callable[[str | None], "AbstractDeployment"]
"""Makes a deployment that is not started, of an image or of the default one."""

KINDS = {
    "docker": "DockerDeploymentConfig",
    "modal": "ModalDeploymentConfig",
    "fargate": "FargateDeploymentConfig",
    "daytona": "DaytonaDeploymentConfig",
}
"""Kinds of which every box is a new one. Of `remote` all boxes would be one, and `local` is none."""
_AT_ONCE = 64
"""Most deployments that start or stop at a time."""


def configured(fields: Mapping[str, Any], image: str = "") -> Deploy:
    """How boxes are deployed, by the fields of swe-rex's own configuration; `image` is the default one.

    Raises ConfigError: swe-rex is missing, or a field is wrong.
    """
    swerex_config = _swerex().config
    kind = str(fields.get("type", ""))
    if kind not in KINDS:
        raise ConfigError(
            f'`line.sandbox.deployment` has type "{kind}"; it should be one of {", ".join(KINDS)}, of which '
            "every box is a new machine"
        )
    model: type[BaseModel] = getattr(swerex_config, KINDS[kind])
    given = {name: value for name, value in fields.items() if name != "type"}
    if image:
        given["image"] = image
    if kind == "daytona" and "DAYTONA_API_KEY" in os.environ:
        given.setdefault("api_key", os.environ["DAYTONA_API_KEY"])
    _validated(model, kind, given)

    def deploy(image: str | None) -> AbstractDeployment:
        asked = _validated(model, kind, {**given, "image": image} if image else given)
        try:
            deployment: AbstractDeployment = asked.get_deployment()  # type: ignore[attr-defined]
        except ImportError as error:
            mend = f"install it with `pip install 'swe-rex[{kind}]'`"
            raise ConfigError(
                f"swe-rex deploys to {kind} with `{error.name}`, which is missing; {mend}"
            ) from None
        return deployment

    return deploy


def _validated(model: type[BaseModel], kind: str, given: Mapping[str, Any]) -> BaseModel:
    place = "`line.sandbox.deployment`"
    for name in given:
        if name not in model.model_fields:
            close = nearest(name, list(model.model_fields))
            hint = f"; did you mean `{close}`?" if close else f"; it takes {', '.join(model.model_fields)}"
            raise ConfigError(f"{place} of type {kind} has no field `{name}`{hint}")
    try:
        return model(**given)
    except ValidationError as error:
        wrong = error.errors()[0]
        field = ".".join(str(part) for part in wrong["loc"])
        raise ConfigError(f"{place} of type {kind}: `{field}` is wrong: {wrong['msg']}") from None


def _swerex() -> Any:
    """`swerex.deployment`, made safe and quiet. Raises ConfigError when it is not installed."""
    os.environ.setdefault(
        "SWE_REX_LOG_STREAM_LEVEL", "CRITICAL"
    )  # read on import; else all goes to the screen
    try:
        import swerex.deployment.config
        from swerex.runtime.remote import RemoteRuntime
    except ImportError as error:
        raise ConfigError(
            f"boxes by swe-rex need the package `{error.name}`; install it with "
            "`pip install 'patchwright[swerex]'`"
        ) from None
    RemoteRuntime._handle_transfer_exception = _refuse  # type: ignore[method-assign, assignment]
    return swerex.deployment


def _refuse(runtime: object, transferred: Any) -> None:
    """In the place of swe-rex's own, which calls whatever function the server of a box names, with a text of
    the server's: `os.system` too."""
    raise SandboxError(f"the swe-rex server of a box met an error: {str(transferred.message)[:300]}")


class Machines:
    """Deployments of one backend.

    Example: `machine = await machines.start("python:3.12")`, `await machines.stop(machine)`
    """

    def __init__(self, deploy: Deploy) -> None:
        _swerex()
        self._deploy = deploy
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="swerex")

    async def start(self, image: str | None) -> AbstractDeployment:
        """A started one; what did not start is stopped. Raises SandboxError, or ConfigError for what is not
        installed."""
        started: list[AbstractDeployment] = []

        async def work() -> AbstractDeployment:
            started.append(await _start(self._deploy, image))
            return started[0]

        try:
            return await self._aside(work)
        except asyncio.CancelledError:
            for deployment in started:  # just when it was no longer wanted
                await self.stop(deployment)
            raise

    async def stop(self, deployment: AbstractDeployment) -> None:
        """Give the machine back. Raises SandboxError; it may be called again then."""
        await self._aside(lambda: _stop(deployment))

    def close(self) -> None:
        """Let the threads go."""
        self._threads.shutdown(wait=False)

    async def _aside(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """`work` in a thread with a loop of its own; when cancelled it is cancelled there, and its end
        waited for."""
        running: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[T]]] = []

        async def inside() -> T:
            task = asyncio.ensure_future(work())
            running.append((asyncio.get_running_loop(), task))
            return await task

        future = asyncio.get_running_loop().run_in_executor(self._threads, lambda: asyncio.run(inside()))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            for loop, task in running:
                with contextlib.suppress(RuntimeError):  # that loop has ended
                    loop.call_soon_threadsafe(task.cancel)
            await asyncio.gather(future, return_exceptions=True)
            raise


async def _start(deploy: Deploy, image: str | None) -> AbstractDeployment:
    deployment = None
    try:
        deployment = deploy(image)
        await deployment.start()  # type: ignore[no-untyped-call]
        return deployment
    except BaseException as error:
        if deployment is not None:
            with contextlib.suppress(Exception):
                await _stop(deployment)
        if isinstance(error, Exception) and not isinstance(error, ConfigError | SandboxError):
            raise SandboxError(f"swe-rex did not start a box: {_brief(error)}") from error
        raise


async def _stop(deployment: AbstractDeployment) -> None:
    """Stop without asking the server in the box, which may be dead, busy or hostile."""
    from swerex.exceptions import DeploymentNotStartedError

    runtime: Any = getattr(deployment, "_runtime", None)
    sandbox: Any = getattr(deployment, "_sandbox", None)
    if runtime is not None:
        runtime.close = _nothing
    try:
        if sandbox is not None and type(deployment).__name__ == "ModalDeployment":
            await sandbox.terminate.aio()  # swe-rex 1.4 does so only to a sandbox that has ended already
        await deployment.stop()  # type: ignore[no-untyped-call]
    except DeploymentNotStartedError:
        pass
    except Exception as error:
        raise SandboxError(f"swe-rex did not stop a box: {_brief(error)}") from error
    deployment.stop = _nothing  # type: ignore[method-assign]  # its destructor stops once more, and says so
    deployment.logger = logging.getLogger(__name__)


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


async def _nothing() -> None:
    pass
