"""SGLang as an engine: `python -m sglang.launch_server --model-path MODEL`.

Its log-probs are those after the temperature and before top-p and top-k (its pull request 5961): RL refuses
these with it (`HttpEngine.processed`). `SGLANG_RETURN_ORIGINAL_LOGPROB` must not be set: they would be those
before the temperature. Requests, answers and errors are those of 0.5.23, read in its source.
"""

from __future__ import annotations

import contextlib

from patchwright.engine.http import HttpEngine, Json
from patchwright.errors import EngineError
from patchwright.types import Sampling

__all__ = ["SglangEngine"]


class SglangEngine(HttpEngine):
    """Samples by `/generate` with token ids in and out.

    Example: `await SglangEngine.connect(EngineConfig(use="sglang", url="http://127.0.0.1:30000"))`
    """

    name = "SGLang"
    hold = ("/pause_generation", {"mode": "retract"})
    go_on = ("/continue_generation", {})

    def _request(self, prompt: list[int], sampling: Sampling, room: int) -> tuple[str, Json]:
        params: Json = {
            "max_new_tokens": room,
            **self._common(sampling),
            "no_stop_trim": True,
        }
        if sampling.seed is not None:
            params["sampling_seed"] = sampling.seed
        return "/generate", {"input_ids": prompt, "sampling_params": params, "return_logprob": True}

    def _take(self, answer: Json) -> tuple[list[int], list[float], str, int]:
        meta = answer["meta_info"]
        tokens = meta["output_token_logprobs"]
        ids, logprobs = [token[1] for token in tokens], [token[0] for token in tokens]
        return ids, logprobs, meta["finish_reason"]["type"], meta.get("cached_tokens") or 0

    async def _look(self) -> None:
        """See `HttpEngine`. Its longest prompt is some tokens under its context, or what its cache can hold;
        it refuses a longer one as a mistake, where the context is full."""
        await super()._look()
        longest = self._max_context
        with contextlib.suppress(EngineError):  # before 0.5 it had another name
            longest = (await self._ask("GET", "/server_info")).get("max_req_input_len") or longest
        self._max_context = min(self._max_context, int(longest))

    async def _load(self, folder: str, version: int) -> None:
        order = {"model_path": folder, "weight_version": str(version), "flush_cache": True}
        answer = await self._ask("POST", "/update_weights_from_disk", order)
        if answer.get("success") is not True:
            raise EngineError(f"SGLang did not take the weights: {answer.get('message')}")
