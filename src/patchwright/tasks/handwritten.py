"""Hand-written kinds of functions for training: what the composed ones do not show.

A `Kind` is a template: `{name}` slots are filled from the pools of `tasks.function`, from the kind's own
`choices`, and from a condition or a transform where the template asks for one. `harder` holds the kinds
that are never trained on.
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
    """A template of functions. Example: see `TRAINING`."""

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
    slots |= rng.choice(kind.choices)
    element = slots.get("on", "{x}").format(**slots)
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


def _moves(rng: Random, slots: Slots) -> Arguments:
    kinds = [slots["p"], rng.choice((slots["p"], slots["q"])), slots["q"]]
    return [(kind, rng.randint(1, 9)) for kind in kinds], rng.randint(0, 9)


def _sorted_and_key(rng: Random, slots: Slots) -> Arguments:
    numbers = sorted(set(integers(rng, 6, 6)))
    return numbers, rng.choice([*numbers, 4])


# --- the kinds --------------------------------------------------------------------------------

_BY_BOUND = "{xs}{bound}"

TRAINING: tuple[Kind, ...] = (
    Kind(
        "keep",
        ("keep_{tag}", "select_{tag}"),
        _BY_BOUND,
        "Return the elements of {xs} that are {that}.",
        "return [{x} for {x} in {xs} if {if}]",
        list_and_bound,
    ),
    Kind(
        "map",
        ("transform", "convert", "mapped"),
        "{xs}",
        "Return each element of {xs} {each}.",
        "{a} = []\nfor {x} in {xs}:\n    {a}.append({value})\nreturn {a}",
        a_list,
    ),
    Kind(
        "map_kept",
        ("map_{tag}",),
        _BY_BOUND,
        "Return the elements of {xs} that are {that}, each {each}.",
        "return [{value} for {x} in {xs} if {if}]",
        list_and_bound,
    ),
    Kind(
        "first_index",
        ("first_{tag}",),
        _BY_BOUND,
        "Return the first index of {xs} whose element is {that}, or -1.",
        "for i in range(len({xs})):\n    if {if}:\n        return i\nreturn -1",
        list_and_bound,
        choices=({"on": "{xs}[i]"},),
    ),
    Kind(
        "any_all",
        ("{q}_{tag}",),
        _BY_BOUND,
        "Return True if {which} of {xs} is {that}.",
        "for {x} in {xs}:\n    if {neg}{if}:\n        return {hit}\nreturn {miss}",
        list_and_bound,
        choices=(
            {"q": "any", "which": "any element", "neg": "", "hit": "True", "miss": "False"},
            {"q": "all", "which": "every element", "neg": "not ", "hit": "False", "miss": "True"},
        ),
    ),
    Kind(
        "split",
        ("split_{tag}",),
        _BY_BOUND,
        "Return the elements of {xs} that are {that}, then the rest.",
        "yes, no = [], []\nfor {x} in {xs}:\n    if {if}:\n        yes.append({x})\n"
        "    else:\n        no.append({x})\nreturn yes + no",
        list_and_bound,
    ),
    Kind(
        "take_while",
        ("while_{tag}",),
        _BY_BOUND,
        "Return the elements of {xs} before the first that is not {that}.",
        "{a} = []\nfor {x} in {xs}:\n    if not {if}:\n        break\n    {a}.append({x})\nreturn {a}",
        list_and_bound,
    ),
    Kind(
        "replace",
        ("replace_{tag}",),
        _BY_BOUND,
        "Return {xs} with the elements that are {that} replaced by {d}.",
        "return [{d} if {if} else {x} for {x} in {xs}]",
        list_and_bound,
    ),
    Kind(
        "extreme",
        ("{w}_value",),
        "{xs}",
        "Return the {w} element of {xs}.",
        "best = {xs}[0]\nfor {x} in {xs}:\n    if {x} {o} best:\n        best = {x}\nreturn best",
        a_list,
        choices=({"w": "largest", "o": ">"}, {"w": "smallest", "o": "<"}),
    ),
    Kind(
        "spread",
        ("spread", "extent", "value_range"),
        "{xs}",
        "Return the largest element of {xs} minus the smallest.",
        "return max({xs}) - min({xs})",
        a_list,
    ),
    Kind(
        "kth",
        ("kth_{w}",),
        "{xs}, k",
        "Return the k-th {w} element of {xs}, counting from 1.",
        "ordered = sorted({xs}{how})\nreturn ordered[k - 1]",
        list_and_count,
        choices=({"w": "smallest", "how": ""}, {"w": "largest", "how": ", reverse=True"}),
    ),
    Kind(
        "running",
        ("running_sum", "cumulative", "prefix_sums"),
        "{xs}",
        "Return the running sums of {xs}.",
        "sofar = 0\n{a} = []\nfor {x} in {xs}:\n    sofar += {x}\n    {a}.append(sofar)\nreturn {a}",
        a_list,
    ),
    Kind(
        "deltas",
        ("differences", "deltas", "steps"),
        "{xs}",
        "Return the differences between neighbours in {xs}.",
        "{a} = []\nfor i in range(len({xs}) - 1):\n    {a}.append({xs}[i + 1] - {xs}[i])\nreturn {a}",
        a_list,
    ),
    Kind(
        "dot",
        ("dot", "dot_product", "inner"),
        "left, right",
        "Return the sum of the products of left and right.",
        "{a} = 0\nfor i in range(len(left)):\n    {a} += left[i] * right[i]\nreturn {a}",
        two_lists,
    ),
    Kind(
        "pairwise",
        ("pairwise_{w}",),
        "left, right",
        "Return the {which} element of each pair from left and right.",
        "{a} = []\nfor x, y in zip(left, right):\n    {a}.append({w}(x, y))\nreturn {a}",
        two_lists,
        choices=({"w": "max", "which": "larger"}, {"w": "min", "which": "smaller"}),
    ),
    Kind(
        "rotate",
        ("rotate", "rotate_left"),
        "{xs}, {size}",
        "Move the first {size} elements of {xs} to the end.",
        "return {xs}[{size}:] + {xs}[:{size}]",
        list_and_count,
    ),
    Kind(
        "chunk",
        ("chunk", "batches", "split_every"),
        "{xs}, {size}",
        "Split {xs} into lists of length {size}.",
        "{a} = []\nfor i in range(0, len({xs}), {size}):\n    {a}.append({xs}[i:i + {size}])\nreturn {a}",
        list_and_count,
    ),
    Kind(
        "windows",
        ("windows", "sliding"),
        "{xs}, {size}",
        "Return every run of {size} neighbours in {xs}.",
        "{a} = []\nfor i in range(len({xs}) - {size} + 1):\n    {a}.append({xs}[i:i + {size}])\nreturn {a}",
        list_and_count,
    ),
    Kind(
        "unique",
        ("unique", "dedupe", "distinct"),
        "{xs}",
        "Return {xs} without repeated elements.",
        "{a} = []\nfor {x} in {xs}:\n    if {x} not in {a}:\n        {a}.append({x})\nreturn {a}",
        lambda rng, slots: ([rng.randint(1, 3) for _ in range(5)],),
    ),
    Kind(
        "frequencies",
        ("frequencies", "histogram", "counts"),
        "{xs}",
        "Count each element of {xs}.",
        "{a} = {{}}\nfor {x} in {xs}:\n    {a}[{x}] = {a}.get({x}, 0) + 1\nreturn {a}",
        lambda rng, slots: ([rng.randint(1, 3) for _ in range(4)],),
    ),
    Kind(
        "column_sum",
        ("column_sum", "column_total"),
        "{rows}, {j}",
        "Sum column {j} of {rows}.",
        "{a} = 0\nfor row in {rows}:\n    {a} += row[{j}]\nreturn {a}",
        lambda rng, slots: (*a_grid(rng, slots), rng.randint(0, 1)),
        choices=({"j": "j"}, {"j": "col"}, {"j": "index"}),
    ),
    Kind(
        "count_letter",
        ("count_letter", "occurrences"),
        "{s}, letter",
        "Count how often letter occurs in {s}.",
        "count = 0\nfor c in {s}:\n    if c == letter:\n        count += 1\nreturn count",
        word_and_letter,
    ),
    Kind(
        "affix",
        ("count_{w}",),
        "{xs}, part",
        "Count the strings in {xs} that {w} with part.",
        "count = 0\nfor {s} in {xs}:\n    if {s}.{w}swith(part):\n        count += 1\nreturn count",
        lambda rng, slots: ([word(rng, 3, 3) for _ in range(4)], rng.choice("abc")),
        choices=({"w": "start"}, {"w": "end"}),
    ),
    Kind(
        "palindrome",
        ("is_palindrome", "same_reversed"),
        "{s}",
        "Return True if {s} reads the same backwards.",
        "n = len({s})\nfor i in range(n // 2):\n    if {s}[i] != {s}[n - 1 - i]:\n        return False\nreturn True",
        a_word,
        extra=(("abcba",), ("abca",), ("abba",)),
    ),
    Kind(
        "count_chars",
        ("count_{w}",),
        "{s}",
        "Count the {w} in {s}.",
        'count = 0\nfor c in {s}:\n    if c in "{among}":\n        count += 1\nreturn count',
        lambda rng, slots: ("".join(rng.choice("ab1e(") for _ in range(5)),),
        choices=(
            {"w": "vowels", "among": "aeiou"},
            {"w": "digits", "among": "0123456789"},
            {"w": "brackets", "among": "()[]"},
        ),
    ),
    Kind(
        "gcd",
        ("gcd", "common_divisor"),
        "a, b",
        "Return the greatest common divisor of a and b.",
        "while b != 0:\n    a, b = b, a % b\nreturn a",
        lambda rng, slots: (rng.randint(1, 5) * 6, rng.randint(1, 5) * 4),
    ),
    Kind(
        "power",
        ("power", "raise_to"),
        "base, exp",
        "Return base to the power exp.",
        "{a} = 1\nfor i in range(exp):\n    {a} *= base\nreturn {a}",
        naturals((2, 5), (0, 4)),
    ),
    Kind(
        "factorial",
        ("factorial", "fact"),
        "{n}",
        "Return the product of the integers from 1 to {n}.",
        "{a} = 1\nfor i in range(2, {n} + 1):\n    {a} *= i\nreturn {a}",
        natural(0, 7),
    ),
    Kind(
        "digit_sum",
        ("digit_sum", "sum_digits"),
        "{n}",
        "Return the sum of the decimal digits of {n}.",
        "{a} = 0\nwhile {n} > 0:\n    {a} += {n} % 10\n    {n} //= 10\nreturn {a}",
        natural(5, 9999),
    ),
    Kind(
        "insert_position",
        ("insert_position", "lower_bound"),
        "{xs}, key",
        "Return the first index where {xs} is at least key.",
        "i = 0\nwhile i < len({xs}) and {xs}[i] < key:\n    i += 1\nreturn i",
        _sorted_and_key,
    ),
    Kind(
        "leap",
        ("is_leap", "leap_year"),
        "year",
        "Return True if year is divisible by 4 but not by 100, or by 400.",
        "if year % 400 == 0:\n    return True\nreturn year % 4 == 0 and year % 100 != 0",
        natural(1890, 2030),
        extra=((2000,), (1900,), (2024,), (2023,)),
    ),
    Kind(
        "letter_grade",
        ("grade", "rank", "level"),
        "score",
        "Return A if score is at least {high}, B if at least {mid}, else C.",
        'if score >= {high}:\n    return "A"\nif score >= {mid}:\n    return "B"\nreturn "C"',
        lambda rng, slots: (rng.choice((int(slots["high"]), int(slots["mid"]))) + rng.randint(-1, 1),),
        choices=({"high": "90", "mid": "70"}, {"high": "80", "mid": "50"}, {"high": "85", "mid": "60"}),
    ),
    Kind(
        "fizz",
        ("fizz", "fizz_buzz"),
        "{n}",
        "Return fizz if {n} is divisible by {p}, buzz if divisible by {q}, else {n}.",
        'if {n} % {p} == 0:\n    return "fizz"\nif {n} % {q} == 0:\n    return "buzz"\nreturn {n}',
        lambda rng, slots: (rng.choice((int(slots["p"]), int(slots["q"]), 1)) * rng.randint(1, 4),),
        choices=({"p": "3", "q": "5"}, {"p": "2", "q": "7"}, {"p": "4", "q": "3"}),
    ),
    Kind(
        "triangle",
        ("triangular", "sum_to"),
        "{n}",
        "Return the sum of the integers from 1 to {n}.",
        "return {n} * ({n} + 1) // 2",
        natural(1, 12),
    ),
    Kind(
        "rectangle",
        ("perimeter", "border"),
        "w, h",
        "Return the perimeter of a w by h rectangle.",
        "return 2 * (w + h)",
        naturals((1, 12), (1, 12)),
    ),
    Kind(
        "seconds",
        ("seconds", "to_seconds"),
        "h, m, s",
        "Convert h hours, m minutes and s seconds to seconds.",
        "return h * 3600 + m * 60 + s",
        naturals((0, 3), (0, 9), (1, 9)),
    ),
    Kind(
        "balance",
        ("final_balance", "replay"),
        "moves, balance",
        "Add each {p} in moves to balance and subtract the rest.",
        'for kind, x in moves:\n    if kind == "{p}":\n        balance += x\n'
        "    else:\n        balance -= x\nreturn balance",
        _moves,
        choices=({"p": "in", "q": "out"}, {"p": "add", "q": "take"}, {"p": "up", "q": "down"}),
    ),
    Kind(
        "fibonacci",
        ("fib", "fibonacci"),
        "{n}",
        "Return the {n}-th Fibonacci number, starting from 0.",
        "a, b = 0, 1\nfor i in range({n}):\n    a, b = b, a + b\nreturn a",
        natural(0, 9),
    ),
    Kind(
        "initials",
        ("initials", "first_letters"),
        "{s}",
        "Return the first letters of the words in {s} in {w} case.",
        'out = ""\nfor part in {s}.split():\n    out += part[0].{w}()\nreturn out',
        lambda rng, slots: (f"{word(rng, 2, 3).title()} {word(rng, 2, 3)}",),
        choices=({"w": "upper"}, {"w": "lower"}),
    ),
)
"""Mixed into the training sets beside composed functions."""
