"""What a Docker backend has in its engine, and what nobody owns any more. Between `docker.py` and the API.

An engine that died, or could not be told, may come back with containers whose boxes are over: they are looked
for and removed before the next box is opened. So is what dead programs of this machine left behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Mapping

from patchwright.errors import SandboxError
from patchwright.sandbox import owner
from patchwright.sandbox.docker_api import DockerApi
from patchwright.sandbox.docker_container import LABEL, labels

_NAME = f"{LABEL}.name"
"""Label of an image: the container that it is for."""
_RETRY = 10.0
"""Seconds until what the engine refused to remove is tried again."""
_LOOKS, _PAUSE = 100, 0.05
"""Looks at a container that is going, and seconds before each."""


class Estate:
    """The containers and images of one run. Methods raise SandboxError when the engine does not answer.

    Example::

        estate = Estate(api)
        await estate.settle()
        name = estate.name()
        await estate.drop(name)
    """

    def __init__(self, api: DockerApi) -> None:
        self.run = secrets.token_hex(8)
        """A label of everything that is made here."""
        self._api = api
        self._owned: set[str] = set()
        self._settled = False
        """Whether nothing can be there that nobody owns."""
        self._settling = asyncio.Lock()
        self._used = False
        self._patient_until = 0.0

    def name(self) -> str:
        """A name for a container that will be made. What carries it is left alone until it is dropped."""
        name = f"patchwright-{secrets.token_hex(8)}"
        self._owned.add(name)
        self._used = True
        return name

    async def commit(self, original: str, name: str) -> str:
        """An unnamed image of the container `original`, for the container `name`; its id."""
        return await self._api.commit(original, {**labels(self.run), _NAME: name})

    async def drop(self, name: str, image: str = "") -> None:
        """Remove a container and the image that was made for it; gone is fine. When it raises, it may be
        called again, and `settle` does it too."""
        self._owned.discard(name)
        try:
            gone = await self._api.remove(name)
            if image:  # which the engine keeps while the container is only going
                gone = gone or await self._gone(name)
                gone &= await self._api.remove_image(image)
            if not gone:
                self._settled = False
        except BaseException:
            self._settled = False
            raise

    async def _gone(self, name: str) -> bool:
        """Wait some seconds for a container that is going by itself; whether it is gone."""
        for _ in range(_LOOKS):
            await asyncio.sleep(_PAUSE)
            if await self._api.remove(name):
                return True
        return False

    async def abandon(self, name: str, image: str = "") -> None:
        """Drop what was half made; when that cannot be done now, it is done later."""
        try:
            with contextlib.suppress(SandboxError):
                await asyncio.shield(self.drop(name, image))
        finally:
            self._settled = False  # the engine may be making it still

    async def settle(self) -> None:
        """Remove what nobody owns, if there may be something. What the engine refuses to remove is left for
        some seconds: it keeps nobody from opening boxes."""
        if self._settled or time.monotonic() < self._patient_until:
            return
        async with self._settling:
            if self._settled:
                return
            self._settled = True  # unless something goes wrong from here on
            try:
                refusals, going = await self._remove_unowned()
            except BaseException:
                self._settled = False
                raise
            if refusals or going:  # an engine that crashes forgets what was going
                self._settled, self._patient_until = False, time.monotonic() + _RETRY

    async def clear(self) -> None:
        """Remove everything of this run, and what nobody owns; nothing is asked if nothing was made. What is
        going by itself is waited for, some seconds."""
        if not self._used:
            return
        self._owned.clear()
        async with self._settling:
            for _ in range(_LOOKS):
                refusals, going = await self._remove_unowned()
                for error in refusals:
                    raise error
                if not going:
                    return
                await asyncio.sleep(_PAUSE)

    async def _remove_unowned(self) -> tuple[list[SandboxError], bool]:
        """The refusals, and whether something is only going. Raises SandboxError when the engine does not
        answer at all."""
        label = f"{LABEL}=1"
        containers, images = await self._api.containers(label), await self._api.images(label)
        unowned = [
            self._api.remove(one["Id"])
            for one in containers
            if self._is_unowned(
                one["Labels"], "".join(one["Names"] or ()).lstrip("/")
            )  # dying, it may have none
        ]
        done = await asyncio.gather(*unowned, return_exceptions=True)
        refusals = [error for error in done if isinstance(error, SandboxError)]
        going = False in done
        for image in images:  # newest first, so none goes before what was made from it
            if self._is_unowned(image["Labels"], (image["Labels"] or {}).get(_NAME, "")):
                try:
                    going |= not await self._api.remove_image(image["Id"])
                except SandboxError as error:
                    refusals.append(error)
        return refusals, going

    def _is_unowned(self, labels: Mapping[str, str] | None, name: str) -> bool:
        known = labels or {}
        if known.get(f"{LABEL}.run") == self.run:
            return name not in self._owned
        return owner.is_dead(known.get(f"{LABEL}.owner", ""))
