"""What SWE-rebench V2's parsers are made of: rules for one line, and pieces of names found in linear time.

Logs are hostile, so every pattern here is linear in the length of its line: a run of blanks is entered at its
beginning only and never given back (`BLANKS`), and what ends a line is looked for from the end.

Results without a name are dropped: no task names such a test.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from patchwright.grade.parsers.words import ERROR, FAILED, PASSED, SKIPPED, Reader, Words

BLANKS = r"(?<!\s)\s++"
"""All blanks between two words; in a pattern after `.*?`, what `\\s+` would match, at linear cost."""

WORDS = {
    **dict.fromkeys(("OK", "PASS", "PASSED", "SUCCESS"), PASSED),
    **dict.fromkeys(("FAIL", "FAILED", "FAILURE", "TIMEOUT"), FAILED),
    **dict.fromkeys(("SKIP", "SKIPPED", "TODO", "PENDING"), SKIPPED),
    **dict.fromkeys(("ERR", "ERROR"), ERROR),
}
"""What runners print, in capitals -> the word it stands for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A line of one kind. Example: `Rule(name=named(r"\\* test (?P<test>.+)"), word=PASSED, keep=True)`"""

    name: Callable[[str], str | None]
    """The test that a line names; None when the line is of another kind."""
    word: str
    keep: bool = False
    """Whether a word that the test has already stays."""


def named(pattern: str, clean: Callable[[str], str] = str.strip) -> Callable[[str], str | None]:
    """The group `test` of a match at the line's start, cleaned."""
    match = re.compile(pattern).match
    return lambda line: clean(found["test"]) if (found := match(line)) else None


def upto(prefix: str, ending: str) -> Callable[[str], str | None]:
    """Where a line begins with `prefix` and, after blanks, holds `ending`: what is between, or nothing."""
    begins, ends = re.compile(prefix).match, re.compile(BLANKS + ending).search
    at_once = re.compile(rf"(?<=\s\s){ending}").match

    def name(line: str) -> str | None:
        begin = begins(line)
        if begin is None:
            return None
        if end := ends(line, begin.end() + 1):
            return line[begin.end() : end.start()].strip()
        return "" if at_once(line, begin.end()) else None

    return name


def by_rules(*rules: Rule, prepare: Callable[[str], str] = str.strip) -> Reader:
    """A reader of which the first rule that fits a line decides."""

    def read(log: str) -> Words:
        found: Words = {}
        for line in map(prepare, log.splitlines()):
            for rule in rules:
                if (test := rule.name(line)) is not None:
                    note(found, test, rule.word, keep=rule.keep)
                    break
        return found

    return read


def note(found: Words, test: str, word: str, *, keep: bool = False) -> None:
    """Write a result down, unless it has no name, or `keep` and the test has a word."""
    if test and not (keep and test in found):
        found[test] = word


_RANK = {PASSED: 0, SKIPPED: 1, FAILED: 2, ERROR: 3}


def note_worse(found: Words, test: str, word: str) -> None:
    """Write a result down unless the test has a worse one."""
    note(found, test, word, keep=_RANK[word] < _RANK[found.get(test, word)])


# --- what ends a line


def without_ending(text: str, opening: str, ending: re.Pattern[str]) -> str:
    """Cut off what the last `opening` begins, if `ending` is all of it, and the blanks before."""
    at = text.rfind(opening)
    return text[:at].rstrip() if at >= 0 and ending.fullmatch(text, at) else text


def closing(text: str, opening: re.Pattern[str], start: int = 1) -> int:
    """Where the first `opening` (its last character a parenthesis) begins from `start` on whose parenthesis
    the text's last character closes, with something and no other `)` between; -1 without one."""
    if not text.endswith(")"):
        return -1
    found = opening.search(text, max(start, text.rfind(")", 0, -1) + 1))
    return found.start() if found and found.end() < len(text) - 1 else -1


# A duration at a line's end, read backwards, where every part of it is told by its first character.
_DURATION = re.compile(r"\s*+\)?\s*+(?:sm|s)\s*+\d++(?:\.\d++)?(?:\s*+\()?\s*+", re.IGNORECASE)


def without_duration(name: str) -> str:
    """The name without a time at its end: `a (53ms)`, `a 1.2 s`, even `a3s`."""
    name = name.strip()
    took = _DURATION.match(name[::-1])
    return name[: len(name) - took.end()].strip() if took else name


_BRACKETED = re.compile(r"\[\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\]\s*", re.IGNORECASE)
_INLINE = re.compile(BLANKS + r"in\s++\d++(?:\.\d++)?\s++(?:msec|sec)\b", re.IGNORECASE)
_IN_PARENTHESES = re.compile(r"\(\s*\d+(?:\.\d+)?\s*(?:ms|s)\s*\)\s*", re.IGNORECASE)


def timeless(name: str) -> str:
    """A name as V2's evaluation compares it, on either side: without a time at its end or `in 3 msec`.

    Example: `timeless("a [1.2 ms]") == "a"`
    """
    name = without_ending(name, "[", _BRACKETED)
    return without_ending(_INLINE.sub("", name), "(", _IN_PARENTHESES).strip()


def without_bracketed_time(name: str) -> str:
    """The name without `[1.34 ms]` at its end."""
    return without_ending(name, "[", _BRACKETED).strip()


def some(digits: str) -> bool:
    """Whether a count is above nought, however many digits a log gives it."""
    return digits.strip("0") != ""


def numbers(words: list[str]) -> Iterator[str]:
    """Those of the words that are numbers, without leading noughts."""
    return (word.lstrip("0") for word in words if word.isdecimal())
