"""One model call: how to sample, where, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Finish(StrEnum):
    """Why sampling stopped."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How to sample one completion.

    Example: `Sampling(max_tokens=200, temperature=1.0, stop_ids=(2,), seed=7)`
    """

    max_tokens: int = 1024
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps every token."""
    stop: tuple[str, ...] = ()
    """Strings that end the completion; the text from the string on is not part of the answer."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end the completion; the id itself is kept as the last token."""
    seed: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What an engine sampled: ids, and the log-prob of each id under the distribution it was drawn
    from (after temperature, top-p and top-k; at temperature 0 the untempered log-prob).

    Example: `Completion(token_ids=(17, 2), logprobs=(-0.1, -0.01), finish=Finish.STOP, version=3)`
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Finish
    version: int
    """Weights version of the last token."""
    versions: tuple[int, ...] = ()
    """Weights version of every token when they differ, else empty."""
    cached: int = 0
    """Prompt tokens whose keys and values were reused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An OpenAI-compatible endpoint.

    Example: `Endpoint(base_url="http://127.0.0.1:8011/sessions/ab12/v1", api_key="...", model="policy")`
    """

    base_url: str
    api_key: str
    model: str = "policy"


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Tokens of one call as somebody else's API counts them; zero where it does not say.

    Example: `Usage(prompt=900, cached=800, completion=40)`
    """

    prompt: int = 0
    cached: int = 0
    """Of the prompt, already computed for an earlier call."""
    completion: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One model call exactly as sampled.

    The ids the engine saw are the ids of `parent` (its prompt and its completion), followed by
    `prompt_ids`; it sampled `completion_ids`.

    Example: `Turn(id=1, parent=0, prompt_ids=(5, 6), completion_ids=(7, 2), logprobs=(-0.2, -0.1))`
    """

    id: int
    """Index in `Trajectory.turns`."""
    parent: int | None = None
    """The turn this one extends, or None when it starts a chain."""
    prompt_ids: tuple[int, ...]
    """Prompt ids after the parent's ids (all prompt ids when there is no parent)."""
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """One per completion id, as in `Completion`."""
    version: int = 0
    versions: tuple[int, ...] = ()
    finish: Finish = Finish.STOP
    text: str = ""
    """The completion decoded, special tokens left out."""
    train: bool = True
    """False: recorded, but trains nothing (a side call of the agent, a deliberate mistake of an
    expert)."""
    drift: tuple[str, ...] = ()
    """How the request departed from what was recorded: `reserialised`, `reasoning_restored`, `compaction`,
    `side_call` ... (`gateway/drift.py` says what each means). Empty: it continued the record exactly."""
    usage: Usage | None = None
    """Of a call that an API answered: its ids are not known, so there are none here and it trains nothing."""
    started: float = 0.0
    """Seconds since the epoch."""
    seconds: float = 0.0
