"""Docker boxes: one container per box, over the Engine API, with the runner of the namespace boxes inside.

The runner (`docker_init.py`) is PID 1 of the container and talks over its stdin and stdout, so a command
costs no `docker exec`, and a box ends when its owner hangs up or dies. An image needs bash and a python3
of at least 3.9 with its standard library.

The boxes of image `host` have a read-only root: what they write is in memory and bounded by `disk_mb` as
a whole. In other images the root is writable, and there `disk_mb` bounds each file, not their sum.

A fork of the former copies those folders through the runners. Of the latter it commits the container to an
unnamed image, removed with the fork: the engine knows best what was changed and removed where, in one call.
It keeps whole seconds of the files' times. To set them anew would copy each file, and part hard links.
"""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from typing import Any

from patchwright.errors import ConfigError, SandboxError
from patchwright.sandbox import docker_container as made_of
from patchwright.sandbox.base import BoxSpec
from patchwright.sandbox.box import RunnerBox
from patchwright.sandbox.docker_api import DockerApi, DockerChannel, engine_socket, message
from patchwright.sandbox.docker_estate import Estate
from patchwright.sandbox.docker_warm import Container, Kind, WarmContainers
from patchwright.sandbox.files import FILE_LIMIT
from patchwright.sandbox.mounts import check_mounts
from patchwright.sandbox.rootfs import GITCONFIG

_OPEN = 120.0
"""Seconds a started container may take until its runner answers."""
_COPY = 120.0
"""Seconds a runner may take to pack its files."""


class DockerBox(RunnerBox):
    """One container. The runner inside is the one of the namespace boxes, and so is its client."""

    def __init__(self, spec: BoxSpec, container: Container, backend: DockerBackend) -> None:
        super().__init__(spec, container.channel)
        self._container = container
        self._backend = backend

    async def fork(self) -> DockerBox:
        """See `Sandbox.fork`. One copy is taken at a time."""
        async with self._turns.alone():
            self._check_open()
            folders = made_of.memory_folders(self._spec)
            reply, files = await self._ask({"op": "pack", "folders": folders}, b"", _COPY)
            if "errno" in reply:
                raise SandboxError(f"a box could not be forked: {os.strerror(reply['errno'])}")
            return await self._backend.fork(self._spec, self._container.name, files)

    async def _end(self) -> None:
        self._channel.close("the box is closed")
        await self._backend.discard(self._container)


class DockerBackend:
    """Opens Docker boxes. `default_image` is what boxes of image `host` are made from.

    `socket` is the engine's; left out, it is found as `engine_socket` says. `warm` containers of every image
    and limits that were asked for lately are kept started, so that a box opens at once.

    Example: `backend = DockerBackend(default_image="python:3.12")`
    """

    name = "docker"

    def __init__(self, *, default_image: str | None = None, socket: str | None = None, warm: int = 0) -> None:
        self._image = default_image
        self._api = DockerApi(socket or engine_socket())
        self._estate = Estate(self._api)
        self._warm = WarmContainers(warm, self._started, self.discard)
        self._pulling = asyncio.Lock()
        self._closed = False
        self._boxes: set[DockerBox] = set()

    async def open(self, spec: BoxSpec) -> DockerBox:
        """A fresh container; see `SandboxBackend.open`. Raises ConfigError when no image is set."""
        image = self._image if spec.image == "host" else spec.image
        if not image:
            raise ConfigError(
                "docker boxes need an image for tasks that name none; "
                "set `line.sandbox.image` or give `--image NAME`"
            )
        try:
            check_mounts(spec.mounts)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self._closed:
            raise SandboxError("the sandbox backend is closed")
        await self._estate.settle()
        return await self._furnished(spec, await self._warm.take(self._kind(spec, image)), forked=False)

    async def fork(self, spec: BoxSpec, original: str, files: bytes) -> DockerBox:
        """A box of `spec` like the container `original`, and with `files` in memory; see `Sandbox.fork`."""
        spec = replace(spec, archive=files)
        if spec.image == "host":
            container = await self._warm.take(self._kind(spec, self._image or ""))
            return await self._furnished(spec, container, forked=True)
        return await self._furnished(spec, await self._copied(spec, original), forked=True)

    async def discard(self, container: Container) -> None:
        """Remove a container, and the image made for it. It may be called again after it raised."""
        await self._estate.drop(container.name, container.image)

    async def close(self) -> None:
        """Remove every container of this backend. Closing twice is allowed."""
        if self._closed:
            return
        self._closed = True
        try:
            await self._warm.close()
            await asyncio.gather(*(box.close() for box in self._boxes))
            await self._estate.clear()
        finally:
            await self._api.aclose()

    async def available(self) -> str | None:
        """None when the engine answers, else one sentence that says why not. What nobody owns is removed: the
        first time what dead programs of this machine left behind, later what an engine came back with."""
        try:
            await self._estate.settle()
            await self._warm.mend()
            status, text = await self._api.call("GET", "/_ping")
        except SandboxError as error:
            return str(error)
        return None if status == 200 else message(text)

    async def images(self) -> list[str]:
        """The names of the images that the engine has. Raises SandboxError."""
        status, text = await self._api.call("GET", "/images/json")
        if status != 200:
            raise SandboxError(f"Docker does not list its images: {message(text)}")
        return sorted(name for image in json.loads(text) for name in image.get("RepoTags") or ())

    def _kind(self, spec: BoxSpec, image: str) -> Kind:
        limit = FILE_LIMIT + 2 * (spec.limits.disk_mb << 20)  # all files of the box, packed
        return Kind(made_of.container(spec, image, self._estate.run), limit)

    async def _started(self, kind: Kind) -> Container:
        """A container whose runner waits for the box's first frame."""
        name = self._estate.name()
        try:
            return Container(name, await self._launch(name, kind))
        except BaseException:
            await self._estate.abandon(name)
            raise

    async def _copied(self, spec: BoxSpec, original: str) -> Container:
        """A started container with the files of another."""
        name, image = self._estate.name(), ""
        try:
            image = await self._estate.commit(original, name)
            return Container(name, await self._launch(name, self._kind(spec, image)), image)
        except BaseException:
            await self._estate.abandon(name, image)
            raise

    async def _launch(self, name: str, kind: Kind) -> DockerChannel:
        await self._create(name, kind.container)
        channel = await self._start(name, kind)
        channel.send(made_of.program())
        return channel

    async def _furnished(self, spec: BoxSpec, container: Container, *, forked: bool) -> DockerBox:
        try:
            await _furnish(container.channel, spec, forked)
        except BaseException:
            await self._estate.abandon(container.name, container.image)
            raise
        box = DockerBox(replace(spec, archive=b""), container, self)
        self._boxes = {other for other in self._boxes if not other.closed} | {box}
        return box

    async def _create(self, name: str, container: dict[str, Any]) -> None:
        query, image = {"name": name}, container["Image"]
        status, text = await self._api.call("POST", "/containers/create", query=query, body=container)
        if status == 404:
            await self._pull(image)
            status, text = await self._api.call("POST", "/containers/create", query=query, body=container)
        if status != 201:
            raise SandboxError(f"Docker does not create a container of {image!r}: {message(text)}")

    async def _pull(self, image: str) -> None:
        async with self._pulling:
            status, _ = await self._api.call("GET", f"/images/{image}/json")
            if status != 200 and (reason := await self._api.pull(image)):
                raise SandboxError(f"image {image!r} is not there and cannot be pulled: {reason}")

    async def _start(self, name: str, kind: Kind) -> DockerChannel:
        channel = await self._api.attach(name, kind.reply_limit)
        status, text = await self._api.call("POST", f"/containers/{name}/start")
        if status != 204:
            channel.close("not started")
            raise SandboxError(
                f"a container of {kind.container['Image']!r} does not start (it needs bash and python3): "
                f"{message(text)}"
            )
        return channel


async def _furnish(channel: DockerChannel, spec: BoxSpec, forked: bool) -> None:
    header = {
        "op": "open",
        "workdir": spec.workdir,
        "env": dict(spec.env),
        "gitconfig": GITCONFIG,
        "forked": forked,
    }
    try:
        async with asyncio.timeout(_OPEN):
            await channel.ask(header, spec.archive)
    except TimeoutError:
        raise SandboxError(f"a box did not open within {_OPEN:.0f} s") from None
