"""The engine protocol: token ids in, token ids out, weights in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from patchwright.types import Completion, Sampling, Weights

OnTokens = Callable[[Sequence[int]], None]
"""Called on the event loop with token ids as they are sampled, for streaming."""


class Engine(Protocol):
    """Anything that samples tokens. Cancelling the task that awaits `generate` aborts the request."""

    @property
    def version(self) -> int:
        """Version of the weights that sample the next token."""
        ...

    @property
    def max_context(self) -> int:
        """Most tokens a prompt and its completion may have together."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, *, on_tokens: OnTokens | None = None
    ) -> Completion:
        """Sample one completion.

        A prompt that leaves no room in `max_context` returns an empty completion with
        `finish=LENGTH`. Raises EngineBusy (queue full) or EngineError (the engine is gone).
        """
        ...

    async def load(self, weights: Weights) -> None:
        """Replace the weights in place; requests in flight go on under the new version.

        Raises EngineError when the folder does not fit the model; the old weights then stay.
        """
        ...

    async def close(self) -> None:
        """Abort what is in flight and free the model. Closing twice is allowed."""
        ...
