"""Images in a Docker daemon: pulled through the Engine API with the patience and the budget of the store.

A small ledger remembers which images came this way and when they were last asked for; only those are ever
removed, and never one that a container is made of.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from patchwright.errors import ConfigError, ImageError, InfraError
from patchwright.images.config import ImagesConfig, parse_bytes
from patchwright.images.locks import alone
from patchwright.images.names import Name
from patchwright.images.pull import Watch
from patchwright.images.registry import mirrored
from patchwright.sandbox.docker_api import DockerApi, message
from patchwright.store.files import attributed, write_text

__all__ = ["Daemon"]

_PASSING = re.compile(
    r"toomanyrequests|too many requests|rate limit|timeout|timed out|deadline|connection re|unexpected eof"
    r"|broken pipe|tls handshake|temporary failure|service unavailable|bad gateway|internal server error"
    r"|status:? (429|5\d\d)",
    re.IGNORECASE,
)
"""What an engine says when trying again may help: it passes its registry's words on, and no headers."""
_LONGEST = 60.0


class Daemon:
    """Pulls into one engine; `ledger` is a file of this machine.

    Example: `await Daemon(DockerApi(engine_socket()), ledger, ImagesConfig(), watch).pull(names)`
    """

    def __init__(self, api: DockerApi, ledger: Path, config: ImagesConfig, watch: Watch) -> None:
        self._api = api
        self._ledger = ledger
        self._config = config
        self._budget = parse_bytes(config.budget)
        self._watch = watch
        self._slots = asyncio.Semaphore(config.parallel)
        self._measuring = asyncio.Lock()

    async def pull(self, names: Sequence[Name], *, refresh: bool = False) -> dict[Name, InfraError | None]:
        """Pull all of `names`, and say of each what went wrong, if anything did.

        Raises ConfigError when the budget does not hold them.
        """
        wanted = list(dict.fromkeys(names))
        found = await asyncio.gather(*(self._one(name, refresh, wanted) for name in wanted))
        return dict(zip(wanted, found, strict=True))

    async def prune(self, keep: Sequence[Name] = ()) -> tuple[str, ...]:
        """Remove images pulled here, used longest ago first, until all of Docker's fit; the names removed.

        Raises ConfigError when they do not fit without those of `keep`, of containers, and of others.
        """
        gone: list[str] = []
        ledger, kept = self._read(), {str(name) for name in keep}
        for name in sorted(set(ledger) - kept, key=lambda one: ledger[one]):
            if self._budget is None or await self._used() <= self._budget:
                break
            if await self._remove(name):
                self._note(name, None)
                gone.append(name)
        if self._budget is not None and (used := await self._used()) > self._budget:
            raise ConfigError(
                f"Docker's images take {used / 1e9:.2f} GB without what could be removed, over the budget of "
                f"{self._budget / 1e9:.2f} GB; raise --budget, or ask for fewer"
            )
        return tuple(gone)

    async def _one(self, name: Name, refresh: bool, wanted: Sequence[Name]) -> InfraError | None:
        async with self._slots:
            error: InfraError | None = None
            try:
                if refresh or not await self._is_there(str(name)):
                    await self._patiently(name)
                    self._note(str(name), time.time())
                    await self.prune(wanted)
                elif str(name) in self._read():
                    self._note(str(name), time.time())
            except InfraError as failure:
                error = failure
            self._watch.done(name, error)
            return error

    async def _patiently(self, name: Name) -> None:
        reason = ""
        for attempt in range(self._config.retries + 1):
            if attempt:
                longest = min(self._config.backoff_seconds * 2.0 ** (attempt - 1), _LONGEST)
                await asyncio.sleep(longest * (0.5 + random.random() / 2))
            reason = await self._pull(name)
            if not reason:
                return
            if not _PASSING.search(reason):
                break
        raise ImageError(f"Docker cannot pull {name}: {reason}")

    async def _pull(self, name: Name) -> str:
        """Pull it, from its mirror if it has one, and give it its own name."""
        reason = ""
        for source in mirrored(name, self._config.mirrors):
            reason = await self._api.pull(source)
            if not reason and source != str(name):
                await self._rename(source, name)
            if not reason:
                break
        return reason

    async def _rename(self, source: str, name: Name) -> None:
        query = {"repo": f"{name.registry}/{name.repository}", "tag": name.tag or "latest"}
        status, text = await self._api.call("POST", f"/images/{source}/tag", query=query)
        if status != 201:
            raise ImageError(f"Docker does not name {source} {name}: {message(text)}")
        await self._api.call("DELETE", f"/images/{source}", query={"noprune": "1"})

    async def _is_there(self, name: str) -> bool:
        status, _ = await self._api.call("GET", f"/images/{name}/json")
        return status == 200

    async def _used(self) -> int:
        """Bytes of all layers of the engine, each counted once."""
        async with self._measuring:  # Docker before 23 refuses to do it twice at once
            status, text = await self._api.call("GET", "/system/df", query={"type": "image"})
        if status != 200:
            raise ImageError(f"Docker does not say what its images take: {message(text)}")
        size = json.loads(text).get("LayersSize")
        return size if isinstance(size, int) else 0

    async def _remove(self, name: str) -> bool:
        """Whether it is gone; an image of a container stays (status 409)."""
        status, _ = await self._api.call("DELETE", f"/images/{name}")
        return status in (200, 404)

    def _read(self) -> Mapping[str, float]:
        with attributed("read the ledger of images", self._ledger):
            try:
                found = json.loads(self._ledger.read_text(encoding="utf-8"))
            except (FileNotFoundError, ValueError):
                return {}
        return {str(name): float(used) for name, used in found.items()}

    def _note(self, name: str, used: float | None) -> None:
        """Write down the last use of an image, or that it is gone."""
        with attributed("write the ledger of images", self._ledger):
            self._ledger.parent.mkdir(parents=True, exist_ok=True)
            with alone(self._ledger.with_suffix(".lock")):
                ledger = {one: when for one, when in self._read().items() if one != name}
                entry = {} if used is None else {name: used}
                write_text(self._ledger, json.dumps({**ledger, **entry}))
