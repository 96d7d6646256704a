"""Composed functions: a slice, a condition, a transform, a reduction and a last step, 57,600 ways.

The five choices are a function's *signature*. A fifth of all signatures is held out: no training set
holds any function with such a signature, whatever its names and constants are.
"""

from __future__ import annotations

import zlib
from random import Random

from patchwright.tasks.function import (
    BOUNDS,
    ELEMENTS,
    LISTS,
    PREDICATES,
    RESULTS,
    Function,
    Predicate,
    define,
    integers,
)

_NAMES = """
apply assess build calc check collect combine compute count_up crunch derive digest eval_items extract
figure find fold gather gauge inspect make measure merge pick process rate reduce report resolve scan
score solve study summary tally weigh work
"""
NAMES = tuple(_NAMES.split())
"""Names of composed functions: they say nothing, the docstring says all."""

_SLICES = (
    ("", "{xs}"),
    (" after the first", "{xs}[1:]"),
    (" before the last", "{xs}[:-1]"),
    (" in sorted order", "sorted({xs})"),
    (" in reverse order", "{xs}[::-1]"),
    (" among the first {c}", "{xs}[:{c}]"),
)
_CONDITIONS = (
    Predicate("", "", ""),
    *PREDICATES,
    Predicate("above {c}", "{x} > {c}", ""),
    Predicate("below {c}", "{x} < {c}", ""),
)
_TRANSFORMS = (
    ("", "{x}"),
    ("doubled ", "{x} * 2"),
    ("squared ", "{x} * {x}"),
    ("increased by {c} ", "{x} + {c}"),
    ("decreased by {c} ", "{x} - {c}"),
    ("halved ", "{x} // 2"),
    ("negated ", "-{x}"),
    ("absolute ", "abs({x})"),
    ("times {c} ", "{x} * {c}"),
    ("modulo {c} ", "{x} % {c}"),
)
_REDUCTIONS = (
    ("Sum", "0", "{a} += {e}"),
    ("Multiply", "1", "{a} *= {e}"),
    ("Count", "0", "{a} += 1"),
    ("List", "[]", "{a}.append({e})"),
    ("Subtract", "0", "{a} -= {e}"),
    ("Take the largest of zero and", "0", "{a} = max({a}, {e})"),
    ("Take the smallest of zero and", "0", "{a} = min({a}, {e})"),
    ("Take the last of", "None", "{a} = {e}"),
)
_LAST_STEPS = (
    ("", "{a}"),
    (", plus {c}", "{a} + {c}"),
    (", minus {c}", "{a} - {c}"),
    (", times {c}", "{a} * {c}"),
    (", modulo {c}", "{a} % {c}"),
    (", negated", "-{a}"),
    (", plus {k}", "{a} + {k}"),
    (", times {k}", "{a} * {k}"),
)
_PARTS = (_SLICES, _CONDITIONS, _TRANSFORMS, _REDUCTIONS, _LAST_STEPS)
_COUNT = 2
_NOT_A_NUMBER = (3, 7)  # reductions that may end in a list or None: no arithmetic after them

Signature = tuple[int, int, int, int, int]


def is_held_out(signature: Signature) -> bool:
    """Whether functions of this signature are kept for evaluation: a fifth of them, fixed for ever."""
    return zlib.crc32(bytes(signature)) % 10 < 2


def composed(rng: Random, *, held_out: bool) -> Function:
    """A composed function, of a held-out signature or of one to train on."""
    while True:
        signature = _signature(rng)
        if is_held_out(signature) == held_out:
            return _realise(signature, rng)


def _signature(rng: Random) -> Signature:
    piece, condition, transform, reduction, last = (rng.randrange(len(part)) for part in _PARTS)
    if reduction == _COUNT:
        transform = 0
    if reduction in _NOT_A_NUMBER:
        last = 0
    return piece, condition, transform, reduction, last


def _realise(signature: Signature, rng: Random) -> Function:
    """Names, constants and example calls for a signature."""
    piece, condition = _SLICES[signature[0]], _CONDITIONS[signature[1]]
    transform, reduction, last = (
        _TRANSFORMS[signature[2]],
        _REDUCTIONS[signature[3]],
        _LAST_STEPS[signature[4]],
    )
    names = _names(rng)
    c_piece, c_condition, c_transform, c_last = ({"c": str(rng.randint(2, 6))} for _ in range(4))
    element = transform[1].format(**names, **c_transform)
    step = reduction[2].format(**names, e=element)
    guard = condition.code.format(**names, **c_condition)
    doc = (
        f"{reduction[0]} the {transform[0].format(**c_transform)}elements of {names['xs']}"
        + piece[0].format(**c_piece)
        + (f" that are {condition.words.format(**names, **c_condition)}" if guard else "")
        + f"{last[0].format(**names, **c_last)}."
    )
    body = [
        f"{names['a']} = {reduction[1]}",
        f"for {names['x']} in {piece[1].format(**names, **c_piece)}:",
        *([f"    if {guard}:", f"        {step}"] if guard else [f"    {step}"]),
        f"return {last[1].format(**names, **c_last)}",
    ]
    bounded = condition.needs_bound or "{k}" in last[1]
    name = rng.choice(NAMES)
    parameters = f"{names['xs']}, {names['k']}" if bounded else names["xs"]
    source = define(name, parameters, doc, body)
    return Function("composed", name, source, _calls(rng, bounded), signature)


def _names(rng: Random) -> dict[str, str]:
    return {
        "xs": rng.choice(LISTS),
        "x": rng.choice(ELEMENTS),
        "k": rng.choice(BOUNDS),
        "a": rng.choice(RESULTS),
    }


def _calls(rng: Random, bounded: bool) -> tuple[tuple[object, ...], ...]:
    """Five lists of three to five numbers; a bound is one of the list, so that edges are hit."""
    lists = [integers(rng, 3, 5) for _ in range(5)]
    return tuple((numbers, rng.choice(numbers)) if bounded else (numbers,) for numbers in lists)
