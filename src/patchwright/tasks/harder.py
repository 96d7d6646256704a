"""Hand-written kinds of functions that are never trained on: a second, harder evaluation set."""

from __future__ import annotations

from random import Random

from patchwright.tasks.function import Arguments, integers, word
from patchwright.tasks.kind import (
    Kind,
    Slots,
    a_grid,
    a_list,
    list_and_bound,
    natural,
    naturals,
    two_lists,
    word_and_letter,
)


def _counts(rng: Random, slots: Slots) -> Arguments:
    return {"a": rng.randint(1, 9)}, {"a": rng.randint(1, 9), "b": rng.randint(1, 5)}


def _around(rng: Random, slots: Slots) -> Arguments:
    return rng.randint(-4, 10), 0, rng.randint(4, 6)


HARDER: tuple[Kind, ...] = (
    Kind(
        "last_index",
        ("last_{tag}",),
        "{xs}{bound}",
        "Return the last index of {xs} whose element is {that}, or -1.",
        "found = -1\nfor i, {x} in enumerate({xs}):\n    if {if}:\n        found = i\nreturn found",
        list_and_bound,
    ),
    Kind(
        "drop",
        ("drop_{tag}",),
        "{xs}{bound}",
        "Return {xs} without the elements that are {that}.",
        "return [{x} for {x} in {xs} if not ({if})]",
        list_and_bound,
    ),
    Kind(
        "is_sorted",
        ("is_{w}",),
        "{xs}",
        "Return True if {xs} is in {w} order.",
        "for i in range(len({xs}) - 1):\n    if {xs}[i] {o} {xs}[i + 1]:\n        return False\nreturn True",
        lambda rng, slots: (sorted(integers(rng, 3, 4), reverse=rng.random() < 0.5),),
        choices=({"w": "ascending", "o": ">"}, {"w": "descending", "o": "<"}),
        extra=(([1, 1, 2],), ([3, 2, 2],), ([1, 3, 2],)),
    ),
    Kind(
        "best_index",
        ("index_of_{w}",),
        "{xs}",
        "Return the first index of the {w} element of {xs}.",
        "best = 0\nfor i in range(len({xs})):\n    if {xs}[i] {o} {xs}[best]:\n        best = i\nreturn best",
        a_list,
        choices=({"w": "largest", "o": ">"}, {"w": "smallest", "o": "<"}),
    ),
    Kind(
        "count_digit",
        ("count_digit", "digit_count"),
        "{n}, digit",
        "Count how often digit occurs in {n}.",
        "count = 0\nwhile {n} > 0:\n    if {n} % 10 == digit:\n        count += 1\n"
        "    {n} //= 10\nreturn count",
        lambda rng, slots: (rng.choice((1221, 3113, 2332, 1112, 3213)), rng.randint(1, 3)),
    ),
    Kind(
        "order_total",
        ("order_total", "bill", "discounted"),
        "price, qty",
        "Return price times qty, minus {c} if qty is at least {d}.",
        "total = price * qty\nif qty >= {d}:\n    total -= {c}\nreturn total",
        lambda rng, slots: (rng.randint(3, 9), int(slots["d"]) + rng.randint(-1, 2)),
    ),
    Kind(
        "range_sum",
        ("range_sum", "sum_between"),
        "low, high",
        "Sum the integers from low to high inclusive, each {each}.",
        "{a} = 0\nfor i in range(low, high + 1):\n    {a} += {value}\nreturn {a}",
        naturals((0, 4), (5, 9)),
        choices=({"on": "i"},),
    ),
    Kind(
        "between",
        ("between", "in_range", "inside"),
        "x, lo, hi",
        "Return True if x is {low} lo and {high} hi.",
        "return x {o} lo and x {p} hi",
        lambda rng, slots: (rng.randint(1, 6), 2, 5),
        choices=(
            {"low": "at least", "o": ">=", "high": "at most", "p": "<="},
            {"low": "greater than", "o": ">", "high": "less than", "p": "<"},
            {"low": "at least", "o": ">=", "high": "less than", "p": "<"},
        ),
        extra=((2, 2, 5), (5, 2, 5)),
    ),
    Kind(
        "take",
        ("take_{w}",),
        "{xs}, count",
        "Return the {w} count elements of {xs}, or {xs} if it is shorter.",
        "if count > len({xs}):\n    return {xs}\nreturn {xs}[{cut}]",
        lambda rng, slots: (integers(rng, 4, 4), rng.randint(1, 5)),
        choices=({"w": "first", "cut": ":count"}, {"w": "last", "cut": "-count:"}),
    ),
    Kind(
        "mismatches",
        ("hamming", "mismatches"),
        "left, right",
        "Count the positions where left and right differ.",
        "count = 0\nfor x, y in zip(left, right):\n    if x != y:\n        count += 1\nreturn count",
        lambda rng, slots: (word(rng, 4, 4), word(rng, 4, 4)),
    ),
    Kind(
        "remove_letter",
        ("remove_letter", "without", "strip_out"),
        "{s}, letter",
        "Return {s} without the character letter.",
        'out = ""\nfor c in {s}:\n    if c != letter:\n        out += c\nreturn out',
        word_and_letter,
    ),
    Kind(
        "merge_counts",
        ("merge_counts", "add_counts"),
        "left, right",
        "Add the values of right to those of left.",
        "out = dict(left)\nfor key in right:\n    out[key] = out.get(key, 0) + right[key]\nreturn out",
        _counts,
    ),
    Kind(
        "row_values",
        ("row_{w}s",),
        "{rows}",
        "Return the {w} of each row of {rows}.",
        "out = []\nfor row in {rows}:\n    out.append({f}(row))\nreturn out",
        a_grid,
        choices=(
            {"w": "sum", "f": "sum"},
            {"w": "maximum", "f": "max"},
            {"w": "minimum", "f": "min"},
            {"w": "length", "f": "len"},
        ),
    ),
    Kind(
        "percent",
        ("percent_{tag}",),
        "{xs}{bound}",
        "Return the percentage of the elements of {xs} that are {that}, rounded down.",
        "hits = sum(1 for {x} in {xs} if {if})\nreturn 100 * hits // len({xs})",
        list_and_bound,
    ),
    Kind(
        "pad",
        ("pad_{w}",),
        "{s}, width",
        "Add dots to the {w} of {s} until its length is width.",
        "while len({s}) < width:\n    {s} = {grown}\nreturn {s}",
        lambda rng, slots: (word(rng, 2, 2), rng.randint(1, 5)),
        choices=({"w": "left", "grown": '"." + {s}'}, {"w": "right", "grown": '{s} + "."'}),
    ),
    Kind(
        "clamp",
        ("clamp", "limit_to", "bounded"),
        "{x}, lo, hi",
        "Limit {x} to the range from lo to hi.",
        "if {x} < lo:\n    return lo\nif {x} > hi:\n    return hi\nreturn {x}",
        _around,
    ),
    Kind(
        "weighted",
        ("weighted_sum", "cart_total"),
        "prices, counts",
        "Sum prices times counts.",
        "total = 0\nfor p, c in zip(prices, counts):\n    total += p * c\nreturn total",
        two_lists,
    ),
    Kind(
        "divisors",
        ("divisors", "factors"),
        "{n}",
        "Return the divisors of {n} from 1 to {n}.",
        "out = []\nfor i in range(1, {n} + 1):\n    if {n} % i == 0:\n        out.append(i)\nreturn out",
        natural(1, 12),
    ),
    Kind(
        "best_kept",
        ("{w}_{tag}",),
        "{xs}{bound}",
        "Return the {w} element of {xs} that is {that}, or None.",
        "best = None\nfor {x} in {xs}:\n    if {if} and (best is None or {x} {o} best):\n"
        "        best = {x}\nreturn best",
        list_and_bound,
        choices=({"w": "largest", "o": ">"}, {"w": "smallest", "o": "<"}),
    ),
    Kind(
        "shorten",
        ("shorten", "truncate"),
        "{s}, width",
        "Cut {s} to width characters and add dots if it is longer than width.",
        'if len({s}) > width:\n    return {s}[:width] + ".."\nreturn {s}',
        lambda rng, slots: (word(rng), rng.randint(2, 6)),
    ),
)
"""Kinds for evaluation only."""
