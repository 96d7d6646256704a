"""Spans: what an attempt, or a step of training, spent its time on. One trace for each of them.

Nothing of OpenTelemetry is imported, and a span costs a look at a variable, until somebody sets a tracer
(`sinks.observing`). The current span follows tasks as context variables do; whoever serves an attempt from a
task of another (the gateway) runs in a copy of the attempt's context.

    attempt: box (queue) | model (queue) ... exec ... | patch | grade (exec ...)
    step:    collect | train | load | compare
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

__all__ = ["TRACER", "Note", "span", "step_span"]

Value = str | bool | int | float | tuple[str, ...]
Note = Callable[[str, Value], None]
"""Says one more thing of a span: key, value."""

TRACER: ContextVar[Tracer | None] = ContextVar("tracer", default=None)
"""Set by `sinks.observing`, and where attempts are made for another process."""
_LONGEST = 500
"""Characters of a text kept with a span: commands can be megabytes."""


@contextmanager
def span(name: str, values: Mapping[str, Value] | None = None, *, root: bool = False) -> Iterator[Note]:
    """The time its block takes, below the current span, or as a trace of its own (`root`).

    Example::

        with span("exec", {"patchwright.command": command}) as note:
            note("patchwright.exit_code", (await box.exec(command)).code)
    """
    tracer = TRACER.get()
    if tracer is None:
        yield _nobody
        return
    from opentelemetry.context import Context

    with tracer.start_as_current_span(name, context=Context() if root else None) as made:

        def note(key: str, value: Value) -> None:
            made.set_attribute(key, _plain(value))

        for key, value in (values or {}).items():
            note(key, value)
        yield note


def step_span(stage: str, step: int) -> AbstractContextManager[Note]:
    """The span of one step of training. Example: `with step_span("rl", 3): ...`"""
    return span("step", {"patchwright.stage": stage, "patchwright.step": step}, root=True)


def _nobody(key: str, value: Value) -> None:
    pass


def _plain(value: Value) -> Value:
    """Text that the wire can carry: hostile commands hold halves of characters."""
    if isinstance(value, tuple):
        return tuple(map(_text, value))
    return _text(value) if isinstance(value, str) else value


def _text(value: str) -> str:
    return value[:_LONGEST].encode("utf-8", "replace").decode()
