"""vLLM as an engine: `vllm serve MODEL --logprobs-mode processed_logprobs` (0.11 or newer).

Replacing weights needs its developer calls: `VLLM_SERVER_DEV_MODE=1` in its environment, and a version whose
`reload_weights` takes a path. Requests, answers and errors are those of 0.33, read in its source; the CPU
build of 0.32 passes `patchwright check engine`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from dataclasses import asdict
from pathlib import Path

from patchwright.engine.http import HttpEngine, Missing
from patchwright.engine.reply import Json, Part, events
from patchwright.errors import ConfigError, EngineError
from patchwright.types import Invitation, Sampling

__all__ = ["EXTENSION", "INSIDE", "VllmEngine"]

INSIDE = Path(__file__).parent / "inside"
"""Goes onto the PYTHONPATH of a server that takes broadcasts."""
EXTENSION = "patchwright_vllm.Extension"


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

    async def _answers(self, path: str, body: Json, *, streamed: bool) -> AsyncGenerator[Json]:
        """See `HttpEngine`. Its parts are a token or a few."""
        if not streamed:
            yield await self._ask("POST", path, body)
            return
        body |= {"stream": True, "stream_options": {"include_usage": True}}
        async with self._asked("POST", path, body) as response:
            async for data in events(response):
                if "error" in data:
                    raise EngineError(f"vLLM gave a reply up: {data['error']}")
                yield data

    def _take(self, answer: Json) -> Part:
        cached = ((answer.get("usage") or {}).get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        if not answer["choices"]:  # the last part of a stream, which only counts
            return [], [], "", cached
        choice = answer["choices"][0]
        told = (choice["logprobs"] or {"token_logprobs": []})["token_logprobs"]
        return choice["token_ids"], told, choice["finish_reason"] or "", cached

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
        except Missing:
            return False
        return "keep" in json.dumps(calls.get("/pause"))

    async def _load(self, folder: str, version: int) -> None:
        order = {"method": "reload_weights", "kwargs": {"weights_path": folder}}
        await self._ask("POST", "/collective_rpc", order)
        await self._forget()

    async def _count(self) -> int:
        """See `HttpEngine`; a launched server has the extension (`launch.vllm_order`)."""
        try:
            answer = await self._soon("POST", "/collective_rpc", {"method": "patchwright_ready"})
        except EngineError as error:
            raise ConfigError(
                '`line.engine.transfer` is "broadcast", for which this vLLM is to be started with '
                f"VLLM_SERVER_DEV_MODE=1 PYTHONPATH={INSIDE} --worker-extension-cls {EXTENSION} ({error})"
            ) from None
        workers = [one for one in answer.get("results") or [] if isinstance(one, dict)]
        if sorted(one.get("rank", -1) for one in workers) != list(range(len(workers))) or not workers:
            raise ConfigError(
                "this vLLM is data parallel: its workers share ranks, and cannot be broadcast to"
            )
        if any(one.get("torn") for one in workers):
            raise EngineError("a broadcast that failed left this vLLM half of a model; start it again")
        return len(workers)

    async def _receive(self, invitation: Invitation, version: int) -> None:
        told = json.dumps(asdict(invitation))
        order = {"method": "patchwright_receive", "kwargs": {"invitation": told}}
        await self._ask("POST", "/collective_rpc", order)
        await self._forget()

    async def _forget(self) -> None:
        """What was computed with the old weights."""
        # Without this word it keeps what it computed with the old weights for as long as a request runs.
        done = await self._ask("POST", "/reset_prefix_cache?reset_running_requests=true")
        if done.get("success") is False:
            raise EngineError("vLLM took the weights, but keeps keys and values of the old ones")
