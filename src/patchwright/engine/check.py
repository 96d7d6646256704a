"""Conformance of engines: what any `Engine` must do, asked of a live one.

The engine is closed at the end: closing is one of the checks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from patchwright.engine.base import Engine
from patchwright.errors import EngineBusy, EngineError
from patchwright.types import CheckResult, Completion, Finish, Sampling, Weights

__all__ = ["check_engine"]

_PATIENCE = 60.0
"""Seconds one check may take; past it the engine hangs."""
_TEXT = "def f(x):\n    return x + 1\n"


@dataclass(frozen=True, slots=True)
class _Subject:
    engine: Engine
    encode: Callable[[str], Sequence[int]]
    weights: Weights | None
    busy_after: int | None

    async def ask(self, sampling: Sampling, text: str = _TEXT) -> Completion:
        return await self.engine.generate(list(self.encode(text)), sampling)


async def check_engine(
    engine: Engine,
    encode: Callable[[str], Sequence[int]],
    *,
    weights: Weights | None = None,
    busy_after: int | None = None,
) -> list[CheckResult]:
    """Run every check and close the engine.

    `encode` makes prompt ids. `weights` are loaded, as the version they name; `busy_after` is how many
    requests may be under way at once. Checks that want the one not given are skipped.
    """
    subject = _Subject(engine, encode, weights, busy_after)
    return [await _result(name, check, subject) for name, check in _CHECKS.items()]


async def _result(name: str, check: Callable[[_Subject], Awaitable[str]], subject: _Subject) -> CheckResult:
    """A check returns what is wrong, or nothing; `_Skip` says why it cannot be made."""
    try:
        detail = await asyncio.wait_for(check(subject), _PATIENCE)
    except _Skip as skip:
        return CheckResult(name=name, ok=True, detail=str(skip), skipped=True)
    except TimeoutError:
        detail = f"no answer within {_PATIENCE:.0f} s"
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
    return CheckResult(name=name, ok=not detail, detail=detail)


class _Skip(Exception):
    """Raised by a check that lacks what it needs."""


async def _one_logprob_each(subject: _Subject) -> str:
    done = await subject.ask(Sampling(max_tokens=8, seed=1))
    if len(done.token_ids) != len(done.logprobs) or not done.token_ids:
        return f"{len(done.token_ids)} ids and {len(done.logprobs)} log-probs"
    worst = max(done.logprobs)
    return f"log-prob {worst} is above 0" if worst > 0 else ""


async def _max_tokens(subject: _Subject) -> str:
    done = await subject.ask(Sampling(max_tokens=1, seed=1))
    if len(done.token_ids) != 1:
        return f"{len(done.token_ids)} tokens where 1 was allowed"
    return "" if done.finish is Finish.LENGTH else f"cut short, it finished by {done.finish}"


async def _stop_ids(subject: _Subject) -> str:
    free = await subject.ask(Sampling(max_tokens=4, temperature=0.0))
    stop = free.token_ids[-1]
    done = await subject.ask(Sampling(max_tokens=4, temperature=0.0, stop_ids=(stop,)))
    wanted = free.token_ids[: free.token_ids.index(stop) + 1]
    if done.token_ids != wanted:
        return f"stopping at {stop} gave {done.token_ids}, not {wanted}: the stop id is the last token"
    return "" if done.finish is Finish.STOP else f"at the stop id it finished by {done.finish}"


async def _greedy(subject: _Subject) -> str:
    sampling = Sampling(max_tokens=8, temperature=0.0)
    return _same(await subject.ask(sampling), await subject.ask(sampling))


async def _seeded(subject: _Subject) -> str:
    sampling = Sampling(max_tokens=8, seed=11)
    return _same(await subject.ask(sampling), await subject.ask(sampling))


async def _together(subject: _Subject) -> str:
    """Prompts of one length apart, so that the batch is ragged."""
    sampling = Sampling(max_tokens=8, temperature=0.0)
    texts = [_TEXT * count for count in (1, 2, 3, 4)]
    alone = [await subject.ask(sampling, text) for text in texts]
    together = await asyncio.gather(*(subject.ask(sampling, text) for text in texts))
    faults = (_same(a, b) for a, b in zip(alone, together, strict=True))
    return next((fault for fault in faults if fault), "")


def _same(a: Completion, b: Completion) -> str:
    return "" if a.token_ids == b.token_ids else f"{a.token_ids} once, {b.token_ids} the other time"


async def _overflow(subject: _Subject) -> str:
    unit = list(subject.encode(_TEXT))
    prompt = unit * (subject.engine.max_context // len(unit) + 1)
    done = await subject.engine.generate(prompt, Sampling(max_tokens=8))
    if done.token_ids or done.finish is not Finish.LENGTH:
        return f"a prompt past max_context gave {len(done.token_ids)} tokens and {done.finish}"
    return ""


async def _streaming(subject: _Subject) -> str:
    seen: list[int] = []
    prompt = list(subject.encode(_TEXT))
    done = await subject.engine.generate(prompt, Sampling(max_tokens=8, seed=3), on_tokens=seen.extend)
    return "" if tuple(seen) == done.token_ids else f"streamed {seen}, returned {done.token_ids}"


async def _cancel(subject: _Subject) -> str:
    long = asyncio.create_task(subject.ask(Sampling(max_tokens=subject.engine.max_context)))
    await asyncio.sleep(0.05)
    long.cancel()
    await asyncio.gather(long, return_exceptions=True)
    done = await subject.ask(Sampling(max_tokens=2, seed=1))
    return "" if done.token_ids else "nothing came after a cancelled request"


async def _busy(subject: _Subject) -> str:
    if subject.busy_after is None:
        raise _Skip("needs busy_after")
    sampling = Sampling(max_tokens=subject.engine.max_context)
    tasks = [asyncio.create_task(subject.ask(sampling)) for _ in range(subject.busy_after + 1)]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        refused = [task for task in done if isinstance(task.exception(), EngineBusy)]
        return "" if refused else f"{len(tasks)} requests were taken at once"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _load(subject: _Subject) -> str:
    if subject.weights is None:
        raise _Skip("needs weights")
    await subject.engine.load(subject.weights)
    done = await subject.ask(Sampling(max_tokens=2, seed=1))
    wanted = subject.weights.version
    if (subject.engine.version, done.version) != (wanted, wanted):
        return f"after loading {wanted}: engine {subject.engine.version}, completion {done.version}"
    return ""


async def _close(subject: _Subject) -> str:
    await subject.engine.close()
    await subject.engine.close()
    try:
        await subject.ask(Sampling(max_tokens=1))
    except EngineError:
        return ""
    return "a closed engine answered"


_CHECKS: dict[str, Callable[[_Subject], Awaitable[str]]] = {
    "returns one log-prob a token, none above 0": _one_logprob_each,
    "obeys max_tokens": _max_tokens,
    "keeps the stop id as the last token": _stop_ids,
    "is deterministic at temperature 0": _greedy,
    "is deterministic with a seed": _seeded,
    "answers together as alone": _together,
    "finishes an overlong prompt by length": _overflow,
    "streams what it returns": _streaming,
    "goes on after a cancelled request": _cancel,
    "refuses when its queue is full": _busy,
    "takes new weights": _load,
    "closes twice and then refuses": _close,
}
