"""The engine behind slime's router: SGLang's `/generate`, tokens in and tokens out, one view per attempt.

slime starts, loads and aborts the servers; here they are only asked. Requests and answers are those slime
itself exchanges (`slime/rollout/sglang_rollout.py` of its 0.3.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import aiohttp

from patchwright.engine.base import OnTokens
from patchwright.errors import EngineBusy, EngineError
from patchwright.types import Completion, Finish, Sampling, Weights

__all__ = ["RouterEngine"]

_BUSY = (429, 503)
_FINISH = {"stop": Finish.STOP, "length": Finish.LENGTH}
_DETAIL = 300
"""Characters of a server's complaint that are passed on."""


class RouterEngine:
    """Asks the router for one attempt's replies, and keeps count of them.

    Example: `RouterEngine(client, "http://10.0.0.1:3000", max_context=32768, key=sample.session_id)`
    """

    def __init__(self, client: aiohttp.ClientSession, url: str, *, max_context: int, key: str = "") -> None:
        """`key` sends all replies of an attempt to one server, which has its prefix in the cache; the router
        heeds it with `--router-policy consistent_hashing`. The client stays the caller's."""
        self._client, self._url, self._max_context = client, url, max_context
        self._headers = {"X-SMG-Routing-Key": key} if key else {}
        self._version = 0
        self.prompt_tokens = 0
        """Of all prompts so far."""
        self.cached_tokens = 0
        """Those of them the servers had computed before."""

    @property
    def version(self) -> int:
        """Version of the weights that answered last; 0 before, and where slime names none."""
        return self._version

    @property
    def max_context(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        return self._max_context

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """See `Engine.generate`. A caller that goes away hangs up, which aborts the request there."""
        room = min(sampling.max_tokens, self._max_context - len(prompt_ids))
        if room <= 0:
            return Completion(token_ids=(), logprobs=(), finish=Finish.LENGTH, version=self._version)
        answer = await self._ask(
            {
                "input_ids": list(prompt_ids),
                "sampling_params": _params(sampling, room),
                "return_logprob": True,
            }
        )
        found = self._take(answer)
        if on_tokens is not None and found.token_ids:
            on_tokens(found.token_ids)
        return found

    def _take(self, answer: Any) -> Completion:
        try:
            meta = answer["meta_info"]
            finish = _FINISH.get(meta["finish_reason"]["type"], Finish.ABORT)
            drawn = () if finish is Finish.ABORT else meta["output_token_logprobs"]
            logprobs = tuple(float(token[0]) for token in drawn)
            ids = tuple(int(token[1]) for token in drawn)
        except (LookupError, TypeError, ValueError, AttributeError):
            raise EngineError("slime's router answered without token ids or log-probs") from None
        told = str(meta.get("weight_version", ""))
        self._version = int(told) if told.isdecimal() else 0
        cached = int(meta.get("cached_tokens") or 0)
        self.prompt_tokens += int(meta.get("prompt_tokens") or 0)
        self.cached_tokens += cached
        return Completion(
            token_ids=ids, logprobs=logprobs, finish=finish, version=self._version, cached=cached
        )

    async def _ask(self, body: dict[str, Any]) -> Any:
        """Raises EngineBusy or EngineError."""
        try:
            async with self._client.post(
                f"{self._url}/generate", json=body, headers=self._headers
            ) as response:
                if response.status == 200:
                    return await response.json(content_type=None)
                said = (await response.text(errors="replace"))[:_DETAIL]
                kind = EngineBusy if response.status in _BUSY else EngineError
                raise kind(f"slime's router refused a request ({response.status}): {said}")
        except ValueError:
            raise EngineError("slime's router answered with something that is not JSON") from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise EngineError(f"slime's router at {self._url} cannot be reached: {error}") from error

    async def load(self, weights: Weights) -> None:
        """Raises EngineError: slime replaces the weights itself."""
        raise EngineError("slime replaces the weights of its servers itself")

    async def close(self) -> None:
        """Nothing to free: servers and client are others'."""


def _params(sampling: Sampling, room: int) -> dict[str, Any]:
    """As SGLang takes them. Special tokens are tokens like others, and the one that stops is kept."""
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "max_new_tokens": room,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_ids),
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    return params if sampling.seed is None else {**params, "sampling_seed": sampling.seed}
