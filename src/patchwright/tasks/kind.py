"""Templates of hand-written functions, and the drawing of names and arguments that fills them.

A `Kind` is a template: `{name}` slots are filled from the pools of `tasks.function`, from the kind's own
`choices`, and from a condition or a transform where the template asks for one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from patchwright.tasks.function import (
    BOUNDS,
    ELEMENTS,
    LISTS,
    PREDICATES,
    RESULTS,
    Arguments,
    Function,
    define,
    integers,
    word,
)

Slots = dict[str, str]
Caller = Callable[[Random, Slots], Arguments]

_CALLS = 6
_POOLS: Mapping[str, Sequence[str]] = {
    "xs": LISTS,
    "x": ELEMENTS,
    "k": BOUNDS,
    "a": RESULTS,
    "s": ("s", "text", "word"),
    "n": ("n", "num", "number"),
    "size": ("n", "size", "width"),
    "rows": ("grid", "rows", "matrix"),
}
_TRANSFORMS = (
    ("doubled", "{x} * 2"),
    ("squared", "{x} * {x}"),
    ("plus {c}", "{x} + {c}"),
    ("minus {c}", "{x} - {c}"),
    ("negated", "-{x}"),
    ("times {c}", "{x} * {c}"),
    ("divided by {c} rounded down", "{x} // {c}"),
    ("modulo {c}", "{x} % {c}"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    """A template of functions. Example: see `handwritten.TRAINING`."""

    id: str
    names: tuple[str, ...]
    """The function is called one of these; slots allowed."""
    parameters: str
    doc: str
    body: str
    """Lines at the indentation of the function's body."""
    call: Caller
    """Draws one tuple of arguments."""
    choices: tuple[Mapping[str, str], ...] = ({},)
    """One of these is added to the slots."""
    extra: tuple[Arguments, ...] = field(default=())
    """Calls at edges that chance would miss; made first."""

    def function(self, rng: Random) -> Function:
        """A function of this kind."""
        slots = _slots(rng, self)
        name = rng.choice(self.names).format(**slots)
        parameters = self.parameters.format(**slots)
        source = define(name, parameters, self.doc.format(**slots), self.body.format(**slots).split("\n"))
        drawn = tuple(self.call(rng, slots) for _ in range(_CALLS))
        return Function(self.id, name, source, self.extra + drawn)


def _slots(rng: Random, kind: Kind) -> Slots:
    slots = {name: rng.choice(pool) for name, pool in _POOLS.items()}
    slots |= {"c": str(rng.randint(2, 5)), "d": str(rng.randint(6, 9))}
    slots |= {name: text.format(**slots) for name, text in rng.choice(kind.choices).items()}
    element = slots.get("on", slots["x"])
    predicate = rng.choice(PREDICATES)
    slots["that"] = predicate.words.format(**slots)
    slots["if"] = predicate.code.format(**{**slots, "x": element})
    slots["tag"] = predicate.name.format(**slots)
    slots["bound"] = f", {slots['k']}" if predicate.needs_bound else ""
    words, code = rng.choice(_TRANSFORMS)
    slots["each"], slots["value"] = words.format(**slots), code.format(**{**slots, "x": element})
    return slots


# --- arguments --------------------------------------------------------------------------------


def a_list(rng: Random, slots: Slots) -> Arguments:
    """One list of numbers."""
    return (integers(rng, 3, 6),)


def list_and_bound(rng: Random, slots: Slots) -> Arguments:
    """A list, and one of its elements when the condition takes a bound."""
    numbers = integers(rng, 3, 6)
    return (numbers, rng.choice(numbers)) if slots["bound"] else (numbers,)


def list_and_count(rng: Random, slots: Slots) -> Arguments:
    """A list and a small positive number."""
    return integers(rng, 3, 5), rng.randint(1, 3)


def two_lists(rng: Random, slots: Slots) -> Arguments:
    """Two lists of equal length."""
    return integers(rng, 3, 3), integers(rng, 3, 3)


def a_grid(rng: Random, slots: Slots) -> Arguments:
    """A square of numbers."""
    return ([integers(rng, 2, 2), integers(rng, 2, 2)],)


def natural(low: int, high: int) -> Caller:
    """One number of a range."""
    return lambda rng, slots: (rng.randint(low, high),)


def naturals(*ranges: tuple[int, int]) -> Caller:
    """One number of each range."""
    return lambda rng, slots: tuple(rng.randint(low, high) for low, high in ranges)


def a_word(rng: Random, slots: Slots) -> Arguments:
    """A word of few letters."""
    return (word(rng),)


def word_and_letter(rng: Random, slots: Slots) -> Arguments:
    """A word and a letter it may have."""
    return word(rng), rng.choice("abc")
