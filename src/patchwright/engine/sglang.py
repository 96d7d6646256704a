"""SGLang as an engine: `python -m sglang.launch_server --model-path MODEL`.

Its log-probs are those after the temperature and before top-p and top-k (its pull request 5961): RL refuses
these with it (`HttpEngine.processed`). `SGLANG_RETURN_ORIGINAL_LOGPROB` must not be set: they would be those
before the temperature. Requests, answers and errors are those of 0.5.23, read in its source.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from patchwright.engine.http import HttpEngine
from patchwright.engine.reply import Json, Part
from patchwright.errors import ConfigError, EngineError
from patchwright.types import Invitation, Sampling

__all__ = ["SglangEngine"]

_AT_ONCE = 2**28
"""Numbers: a gigabyte of float32, unless one tensor has more."""


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

    def _take(self, answer: Json) -> Part:
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
            longest = (await self._soon("GET", "/server_info")).get("max_req_input_len") or longest
        self._max_context = min(self._max_context, int(longest))

    async def _load(self, folder: str, version: int) -> None:
        order = {"model_path": folder, "weight_version": str(version), "flush_cache": True}
        await self._agree("/update_weights_from_disk", order)

    async def _count(self) -> int:
        told = await self._soon("GET", "/server_info")
        if told.get("pp_size", 1) != 1 or told.get("dp_size", 1) != 1:
            raise ConfigError(
                '`line.engine.transfer` is "broadcast", and this SGLang has pipeline or data parallelism: '
                "only tensor parallel workers can be broadcast to"
            )
        return int(told.get("tp_size", 1))

    async def _receive(self, invitation: Invitation, version: int) -> None:
        group = {"group_name": invitation.group}
        place = {"master_address": invitation.address, "master_port": invitation.port}
        join = {**place, "rank_offset": 1, "world_size": invitation.ranks, "backend": invitation.backend}
        await self._agree("/init_weights_update_group", join | group)
        parts = _parts(invitation.shapes)
        for part in parts:
            order: Json = {
                "names": invitation.names[part],
                "dtypes": invitation.dtypes[part],
                "shapes": invitation.shapes[part],
                "flush_cache": part is parts[-1],
                "weight_version": str(version),
            }
            await self._agree("/update_weights_from_distributed", order | group)
        await self._agree("/destroy_weights_update_group", group)

    async def _agree(self, path: str, order: Json) -> None:
        answer = await self._ask("POST", path, order)
        if answer.get("success") is not True:
            raise EngineError(f"SGLang did not take the weights ({path}): {answer.get('message')}")


def _parts(shapes: Sequence[Sequence[int]]) -> list[slice]:
    """Tensors that go by one call: SGLang holds all of these beside its model."""
    parts, begun, size = list[slice](), 0, 0
    for at, shape in enumerate(shapes):
        if size and size + math.prod(shape) > _AT_ONCE:
            parts.append(slice(begun, at))
            begun, size = at, 0
        size += math.prod(shape)
    return [*parts, slice(begun, len(shapes))]
