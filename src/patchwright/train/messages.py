"""Chat messages -> samples, where no tokens were recorded: data sets of other people, agents on endpoints.

A conversation is tokenised as this model would have met it: each assistant message as what is sampled after
the prompt before it. Messages that the template only ever appends to make one row; where it rewrites what
came before (thinking that is dropped from the history), a new row begins. No torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from patchwright.errors import AgentError
from patchwright.render import Renderer
from patchwright.types import Sample

__all__ = ["message_samples"]


def message_samples(
    messages: Sequence[Mapping[str, Any]],
    renderer: Renderer,
    *,
    name: str = "",
    tools: Sequence[Mapping[str, Any]] | None = None,
    context_weight: float = 0.0,
) -> list[Sample]:
    """The training rows of a conversation: loss on assistant messages only, each trained once.

    An assistant message with `"weight": 0` is context. Behaviour log-probs and advantages are 0: these rows
    are for supervised training. All other tokens have `context_weight`. Raises AgentError when the chat
    template refuses the conversation, or rewrites a reply.
    """
    rows: list[_Row] = []
    for index, message in enumerate(messages):
        if message.get("role") != "assistant":
            continue
        found = renderer.reply(messages[: index + 1], tools)
        if found is None:
            raise AgentError(
                f"the chat template rewrites message {index} when it is no longer the prompt's end"
            )
        prompt, said = found
        row = rows[-1] if rows else None
        if row is None or prompt[: len(row.ids)] != row.ids:
            row = _Row()
            rows.append(row)
        row.extend(prompt[len(row.ids) :], context_weight, sampled=False)
        row.extend(said, float(message.get("weight", 1) != 0), sampled=True)
    return [row.sample(name) for row in rows]


class _Row:
    """A row in the making."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self._mask: list[int] = []
        self._weights: list[float] = []

    def extend(self, ids: Sequence[int], weight: float, *, sampled: bool) -> None:
        self.ids += ids
        self._mask += [int(sampled)] * len(ids)
        self._weights += [weight] * len(ids)

    def sample(self, name: str) -> Sample:
        """Nothing comes before the first token, so nothing predicts it."""
        zeros = (0.0,) * len(self.ids)
        return Sample(
            trajectory_id=name,
            token_ids=tuple(self.ids),
            mask=tuple(self._mask),
            logprobs=zeros,
            advantages=zeros,
            weights=(0.0, *self._weights[1:]),
        )
