"""A completion as model servers send it over HTTP: whole, or in parts, by server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from patchwright.errors import EngineError
from patchwright.types import Completion, Finish

__all__ = ["Json", "Part", "Reply", "events", "parsed"]

Json = dict[str, Any]
Part = tuple[list[int], list[float], str, int]
"""Of a reply: ids, log-probs, how it ended (empty: it goes on), and cached prompt tokens."""
_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH}


@dataclass(slots=True)
class Reply:
    """What has come of a completion.

    Example: `Reply(3).add(([7, 2], [-0.1, -0.2], "stop", 0), 3)`
    """

    version: int
    """Of the weights there when something last came: what comes next was sampled by these, or by newer."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    finish: str = ""
    cached: int = 0

    def add(self, part: Part, version: int) -> None:
        """Take what came while the weights are those of `version`. Raises TypeError or ValueError."""
        ids, told, finish, cached = part
        self.ids += ids
        self.logprobs += [float(value) for value in told]  # not a number comes as null
        self.versions += [self.version] * len(ids)
        self.version = version
        self.finish, self.cached = finish or self.finish, cached or self.cached

    def whole(self) -> Completion:
        """The completion, when nothing more comes."""
        differ = len(set(self.versions)) > 1
        return Completion(
            token_ids=tuple(self.ids),
            logprobs=tuple(self.logprobs),
            finish=_FINISH.get(self.finish, Finish.ABORT),
            version=self.versions[-1] if self.versions else self.version,
            versions=tuple(self.versions) if differ else (),
            cached=self.cached,
        )


async def events(response: aiohttp.ClientResponse) -> AsyncGenerator[Json]:
    """What server-sent events hold, each JSON. Raises EngineError when they end without `[DONE]`."""
    rest, done = b"", False
    # aiohttp's own lines have a bound, and a prompt comes back in one.
    async for chunk in response.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for data in (line[5:].strip() for line in lines if line.startswith(b"data:")):
            done = done or data == b"[DONE]"
            if not done:
                yield parsed(data)
    if not done:
        raise EngineError("the server ended a reply in the middle")


def parsed(text: bytes) -> Json:
    """An object of JSON; an empty one for anything else."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    return data if isinstance(data, dict) else {}
