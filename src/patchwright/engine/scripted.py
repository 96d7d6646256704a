"""An engine that answers from a script: no model, no torch.

For tests, dry runs and agents' own development. It obeys the whole protocol of `engine/base.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from patchwright.engine.base import OnTokens
from patchwright.errors import EngineError
from patchwright.types import Completion, Finish, Sampling, Weights

__all__ = ["ScriptedEngine"]


class ScriptedEngine:
    """Answers call n with the n-th reply, or with what a function makes of the decoded prompt.

    Every token has log-prob 0: a scripted reply is certain. `max_tokens` and `max_context` cut a reply
    short, as they would cut a sampled one.

    Example: `ScriptedEngine(["ls", "done"], tokenizer.encode, tokenizer.decode, stop_id=2)`
    """

    def __init__(
        self,
        replies: Sequence[str] | Callable[[str], str],
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Sequence[int]], str],
        *,
        stop_id: int,
        max_context: int = 32768,
    ) -> None:
        self._replies = replies
        self._encode = encode
        self._decode = decode
        self._stop_id = stop_id
        self._max_context = max_context
        self._calls = 0
        self._version = 0
        self._closed = False

    @property
    def version(self) -> int:
        """Version of the weights last loaded; 0 before the first load."""
        return self._version

    @property
    def max_context(self) -> int:
        """Most tokens a prompt and its reply may have together."""
        return self._max_context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """The next reply and the stop id. Raises EngineError when the script has run out."""
        if self._closed:
            raise EngineError("the scripted engine is closed")
        room = max(0, min(sampling.max_tokens, self._max_context - len(prompt_ids)))
        whole = self._until_stop(self._reply(prompt_ids), sampling) if room else ()
        ids = whole[:room]
        await asyncio.sleep(0)
        if on_tokens is not None and ids:
            on_tokens(ids)
        finish = Finish.STOP if ids and len(ids) == len(whole) else Finish.LENGTH
        return Completion(token_ids=ids, logprobs=(0.0,) * len(ids), finish=finish, version=self._version)

    def _until_stop(self, reply: str, sampling: Sampling) -> tuple[int, ...]:
        """A reply's tokens up to whatever ends it first; its own end is the stop id."""
        ids = (*self._encode(reply), self._stop_id)
        for count, token in enumerate(ids, 1):
            if token in sampling.stop_ids or any(text in self._decode(ids[:count]) for text in sampling.stop):
                return ids[:count]
        return ids

    def _reply(self, prompt_ids: Sequence[int]) -> str:
        if callable(self._replies):
            return self._replies(self._decode(prompt_ids))
        call, self._calls = self._calls, self._calls + 1
        if call >= len(self._replies):
            raise EngineError(f"the script's {len(self._replies)} replies are used up")
        return self._replies[call]

    async def load(self, weights: Weights) -> None:
        """Take the version of the weights; the script stays."""
        if self._closed:
            raise EngineError("the scripted engine is closed")
        self._version = weights.version

    async def close(self) -> None:
        """Refuse later calls. Closing twice is allowed."""
        self._closed = True
