"""vLLM as an engine: `vllm serve MODEL --logprobs-mode processed_logprobs` (0.11 or newer).

Replacing weights needs its developer calls: `VLLM_SERVER_DEV_MODE=1` in its environment, and a version whose
`reload_weights` takes a path. Requests, answers and errors are those of 0.33, read in its source; the CPU
build of 0.32 passes `patchwright check engine`.
"""

from __future__ import annotations

import json

from patchwright.engine.http import HttpEngine, Json
from patchwright.errors import ConfigError, EngineError
from patchwright.types import Sampling

__all__ = ["VllmEngine"]


class VllmEngine(HttpEngine):
    """Samples by `/v1/completions` with token ids in and out.

    Example: `await VllmEngine.connect(EngineConfig(use="vllm", url="http://127.0.0.1:8000"))`
    """

    name = "vLLM"
    hold = ("/pause?mode=keep", {})
    go_on = ("/resume", {})

    def _request(self, prompt: list[int], sampling: Sampling, room: int) -> tuple[str, Json]:
        body: Json = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": room,
            **self._common(sampling),
            "logprobs": 0,
            "return_token_ids": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return "/v1/completions", body

    def _take(self, answer: Json) -> tuple[list[int], list[float], str, int]:
        choice = answer["choices"][0]
        cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["finish_reason"], cached

    async def _look(self) -> None:
        """See `HttpEngine`. vLLM tells raw log-probs, before even the temperature, unless asked not to."""
        await super()._look()
        if not self.processed:
            raise ConfigError(
                "vLLM reports log-probs of another distribution than it samples from: start it with "
                "`--logprobs-mode processed_logprobs`"
            )

    async def _can_hold(self) -> bool:
        """Its first pause only aborted, and takes no notice of a mode it does not know: the server is asked
        what it knows."""
        try:
            calls = (await self._ask("GET", "/openapi.json")).get("paths") or {}
        except EngineError:
            return False
        return "keep" in json.dumps(calls.get("/pause"))

    async def _load(self, folder: str, version: int) -> None:
        order = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        await self._ask("POST", "/collective_rpc", order)
        # Without this word it keeps what it computed with the old weights for as long as a request runs.
        done = await self._ask("POST", "/reset_prefix_cache?reset_running_requests=true")
        if done.get("success") is False:
            raise EngineError("vLLM took the weights, but keeps keys and values of the old ones")
