"""Readers of Python test logs: pytest's short summary in its variants, Django, SymPy, seaborn.

Three dialects of the official parsers exist: swebench 5.0.2, swebench 4 (4.1.0, and SWE-rebench's fork) and
SWE-Gym's fork of 2.0.13. Their differences are arguments here.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from patchwright.grade.parsers.words import (
    ERROR,
    FAILED,
    PASSED,
    SKIPPED,
    STATUSES,
    Reader,
    UnreadableLog,
    Words,
    lines,
)

_COUNT = re.compile(r"\[\d+\]")
_COLOUR = re.compile(r"\[\d+m")
_CONTROL = dict.fromkeys(range(1, 32))
_FAILED_NOTE = re.compile(r"FAILED\s*\[.*?\]")


def _is_count(words: list[str]) -> bool:
    """`SKIPPED [3] t.py:4: reason` counts skips at a place and names no test. Other words keep such a name:
    two published tasks expect a test called `[100%]`."""
    return words[0] == SKIPPED and _COUNT.fullmatch(words[1]) is not None


def summary_reader(
    *,
    counts: bool = False,
    prepare: Callable[[str], str] = str,
    name: Callable[[str], str] = str,
    statuses: tuple[str, ...] = STATUSES,
) -> Reader:
    """Lines that begin with a status word: the next word is the test, whatever follows.

    The first word is kept as it stands, so `ERROR: not found` gives the test `not` the word `ERROR:`, which
    the official graders count neither as passed nor as failed. `counts` keeps pytest's counts of skips as
    tests (before 5.0).
    """

    def read(log: str) -> Words:
        found: Words = {}
        for line in map(prepare, lines(log)):
            if not line.startswith(statuses):
                continue
            words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
            if len(words) > 1 and (counts or not _is_count(words)):
                found[name(words[1])] = words[0]
        return found

    return read


def short_option(test: str) -> str:
    """`t[/a/b/c]` is `t[/c]` in pylint's, requests' and pydicom's lists, whose options hold absolute paths;
    what follows the last bracket is dropped, of any test with brackets."""
    start, end = test.find("["), test.rfind("]")
    if not 0 <= start < end:
        return test
    option = test[start + 1 : end]
    if option.startswith("/") and not option.startswith("//") and "*" not in option:
        option = "/" + option.rsplit("/", 1)[-1]
    return f"{test[:start]}[{option}]"


def mouse_buttons(line: str) -> str:
    """matplotlib's lists were written by a Python that printed enum members as numbers."""
    return line.replace("MouseButton.LEFT", "1").replace("MouseButton.RIGHT", "3")


def plain(line: str) -> str:
    """Without colour codes and control characters; a tab goes too, joining the words around it."""
    return _COLOUR.sub("", line).translate(_CONTROL)


def read_pytest_v2(log: str) -> Words:
    """5.0.2: names may hold blanks; the status may stand at the end of the line (old pytest, `-v`)."""
    found: Words = {}
    for line in map(plain, lines(log)):
        if line.startswith(STATUSES):
            words = (line.split(" - ", 1)[0] if line.startswith(FAILED) else line).split()
            if len(words) > 1 and not _is_count(words):
                found[" ".join(words[1:])] = words[0]
        elif line.endswith(STATUSES):
            words = line.split()
            if len(words) > 1:
                found[" ".join(words[:-1])] = words[-1]
    return found


def second_word_reader(
    *,
    prepare: Callable[[str], str] = plain,
    lone: bool = False,
    statuses: tuple[str, ...] = STATUSES,
) -> Reader:
    """`parse_log_pytest_v2` before 5.0: one word of the line is the test and one the status.

    In a line that ends with a status, the second word counts as the status, whatever it is. `lone` is
    SWE-Gym's fork, which dies of a line with one word.
    """

    def read(log: str) -> Words:
        found: Words = {}
        for line in map(prepare, lines(log)):
            front = line.startswith(statuses)
            if not front and not line.endswith(statuses):
                continue
            words = (line.replace(" - ", " ") if line.startswith(FAILED) else line).split()
            if len(words) < 2 and lone:
                raise UnreadableLog(f"a line with no word but {words[0]!r}")
            if len(words) > 1:
                test, word = (words[1], words[0]) if front else (words[0], words[1])
                found[test] = word
        return found

    return read


def plain_pydantic(line: str) -> str:
    """As `parse_log_pytest_v2`, and without the bracketed note after FAILED."""
    line = plain(line)
    end = line.rfind("]") + 1  # beyond it no note can close: without this, many open brackets cost n²
    return _FAILED_NOTE.sub(FAILED, line[:end]) + line[end:]


def seaborn_reader(*, lone: bool = False) -> Reader:
    """`FAILED t`, `t PASSED [ 5%]` or `PASSED t`; errors and skips are not seen. `lone`: dies of a line with
    one word (before 5.0)."""

    def read(log: str) -> Words:
        found: Words = {}
        for line in lines(log):
            words = line.split()
            if not line.startswith((FAILED, PASSED)) and f" {PASSED} " not in line:
                continue
            if len(words) < 2:
                if lone:
                    raise UnreadableLog(f"a line with no word but {line.strip()!r}")
                continue
            _seaborn_line(line, words, found)
        return found

    return read


def _seaborn_line(line: str, words: list[str], found: Words) -> None:
    if line.startswith(FAILED):
        found[words[1]] = FAILED
    elif f" {PASSED} " in line:
        if words[1] == PASSED:
            found[words[0]] = PASSED
    else:
        found[words[1]] = PASSED


_SYMPY_WORDS = {" E": ERROR, " F": FAILED, " ok": PASSED}


def sympy_reader(*, tagged: bool = False) -> Reader:
    """`test_a ok|F|E`; and `___ path.py:test_a ___`, a failure's heading. `tagged` takes off a trailing
    `[OK]` or `[FAIL]` (SWE-Gym's fork)."""

    def read(log: str) -> Words:
        found: Words = dict.fromkeys(filter(None, map(_sympy_heading, lines(log))), FAILED)
        for line in map(str.strip, lines(log)):
            if not line.startswith("test_"):
                continue
            if tagged and line.endswith(("[FAIL]", "[OK]")):
                line = line[: line.rfind("[")].strip()
            for ending, word in _SYMPY_WORDS.items():
                if line.endswith(ending):
                    found[line.split()[0]] = word
        return found

    return read


def _sympy_heading(line: str) -> str:
    """Any line with a blank, a later `.py:` and a blank after that counts as a heading: the test is what
    stands between the first blank and the last one."""
    first, last = line.find(" "), line.rfind(" ")
    dot = line.rfind(".py:", 0, max(last, 0))
    return line[first + 1 : last] if 0 <= first < dot else ""
