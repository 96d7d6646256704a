"""A small generated function and example calls, and what its text is drawn from.

Shared by the generators of functions: `compose`, `handwritten` and `harder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Arguments = tuple[Any, ...]

LISTS = ("xs", "items", "values", "nums", "data", "seq")
"""Names of list parameters."""
ELEMENTS = ("x", "v", "item", "n", "val", "e")
"""Names of loop variables."""
BOUNDS = ("k", "limit", "bound", "cut", "low", "mark")
"""Names of the number a function compares with."""
RESULTS = ("total", "acc", "res", "out", "result")
"""Names of what a loop builds."""


@dataclass(frozen=True, slots=True)
class Function:
    """A correct function whose docstring says exactly what it does, and arguments to call it with.

    Example: `Function("double", "double", "def double(x):\\n    return x * 2\\n", ((1,), (4,)))`
    """

    kind: str
    """What generated it: `composed`, or the name of a hand-written kind."""
    name: str
    source: str
    calls: tuple[Arguments, ...]
    signature: tuple[int, ...] = ()
    """Which parts a composed function is made of."""


@dataclass(frozen=True, slots=True)
class Predicate:
    """A condition on an element, in words and in code, with `{x}`, `{k}` and `{c}` (a small constant)."""

    words: str
    code: str
    name: str
    """Fits into a function's name."""

    @property
    def needs_bound(self) -> bool:
        """Whether the function takes the bound `{k}` as a parameter."""
        return "{k}" in self.code


PREDICATES = (
    Predicate("greater than {k}", "{x} > {k}", "above"),
    Predicate("at least {k}", "{x} >= {k}", "at_least"),
    Predicate("less than {k}", "{x} < {k}", "below"),
    Predicate("at most {k}", "{x} <= {k}", "at_most"),
    Predicate("equal to {k}", "{x} == {k}", "equal"),
    Predicate("different from {k}", "{x} != {k}", "other"),
    Predicate("even", "{x} % 2 == 0", "even"),
    Predicate("odd", "{x} % 2 == 1", "odd"),
    Predicate("divisible by {c}", "{x} % {c} == 0", "by{c}"),
    Predicate("positive", "{x} > 0", "positive"),
    Predicate("negative", "{x} < 0", "negative"),
    Predicate("not zero", "{x} != 0", "nonzero"),
)


def integers(rng: Random, low: int, high: int) -> list[int]:
    """Between `low` and `high` numbers of either sign."""
    return [rng.randint(-6, 9) for _ in range(rng.randint(low, high))]


def word(rng: Random, low: int = 3, high: int = 6) -> str:
    """A made-up word of a few letters, so that letters repeat."""
    return "".join(rng.choice("abcde") for _ in range(rng.randint(low, high)))


def define(name: str, parameters: str, doc: str, body: Sequence[str]) -> str:
    """The source of a function; `body` lines are relative to the function's indentation."""
    return "\n".join(
        [f"def {name}({parameters}):", f'    """{doc}"""', *(f"    {line}" for line in body), ""]
    )
