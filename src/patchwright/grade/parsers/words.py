"""What every official log parser deals in: the words of a log, as written, and line-by-line reading.

The official graders keep the word itself (`XFAIL`, or `PASSED:` from a stray line), and their verdict depends
on it, so the readers here return words; `word_status` turns a word into a `TestStatus` for everybody else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from patchwright.types import TestStatus

Words = dict[str, str]
"""Test name -> the log's word for it, in the order of first mention (truncated ids depend on that order)."""

Reader = Callable[[str], Words]
"""A log (or the part between the markers) in, words out. Raises UnreadableLog where the official one dies."""

PASSED, FAILED, SKIPPED, ERROR, XFAIL = "PASSED", "FAILED", "SKIPPED", "ERROR", "XFAIL"

STATUSES = (FAILED, PASSED, SKIPPED, ERROR, XFAIL)
"""The words of pytest's short summary that the official graders know. `XPASS` is not one of them."""

_STATUS_OF = {
    PASSED: TestStatus.PASSED,
    XFAIL: TestStatus.PASSED,
    FAILED: TestStatus.FAILED,
    SKIPPED: TestStatus.SKIPPED,
    ERROR: TestStatus.ERROR,
}

_ANSI = re.compile(r"\x1B(?:[@-Z\\-_]|\[[0-?]*[ -/]*[@-~])")


class UnreadableLog(ValueError):
    """A log on which the official parser stops with an exception, so that no official report exists."""


def word_status(word: str) -> TestStatus:
    """The status a word stands for; a word no grader knows is an error."""
    return _STATUS_OF.get(word, TestStatus.ERROR)


def lines(log: str) -> Iterator[str]:
    """Lines as the official parsers cut them: at `\\n` alone."""
    yield from log.split("\n")


def without_ansi(log: str) -> str:
    """The log without terminal escape sequences."""
    return _ANSI.sub("", log)


def indent(line: str) -> int:
    """How many whitespace characters a line begins with (all, when there is nothing else)."""
    return len(line) - len(line.lstrip())


_TITLES = 4000
"""Characters of titles that a test may stand under. Without a limit, a log of 1 MB that opens suites and
never closes them has names of gigabytes."""


def nested(joiner: str, titles: Sequence[str], test: str) -> str:
    """A test's name with the titles of its suites in front. Raises UnreadableLog beyond any real nesting."""
    if len(titles) > _TITLES or sum(map(len, titles)) > _TITLES:
        raise UnreadableLog(f"suites with more than {_TITLES} characters of titles")
    return joiner.join([*titles, test])


class Ahead:
    """Where strings occur next in a text, for questions that move onwards: each is looked for once, however
    often it is asked for, so that asking for one that is missing costs nothing the second time."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._next: dict[str, int] = {}

    def find(self, part: str, at: int) -> int:
        """As `str.find`; `at` must not go back."""
        known = self._next.get(part, 0)
        if known >= 0 and (known < at or part not in self._next):
            known = self._next[part] = self._text.find(part, at)
        return known

    def within(self, part: str, at: int, end: int) -> bool:
        """Whether a string lies between two places."""
        return 0 <= self.find(part, at) <= end - len(part)


def tails(log: str, head: re.Pattern[str], ending: str) -> Iterator[str]:
    """What stands between `head` and an `ending` at the end of that line (not of a last line without `\\n`).

    For patterns such as `head(.*)ending\\n`, which cost the square of a line's length when heads fill it.
    """
    ahead = Ahead(log)
    found = head.search(log)
    while found and (end := ahead.find("\n", found.end())) >= 0:
        fits = log.endswith(ending, found.end(), end)
        if fits:
            yield log[found.end() : end - len(ending)]
        found = head.search(log, end + 1 if fits else found.start() + 1)


class Suites:
    """Titles of the nested suites a line is in, told by indentation."""

    def __init__(self) -> None:
        self._open: list[tuple[str, int]] = []

    def enter(self, line: str) -> None:
        """A title line: closes the suites that are indented as much or more."""
        depth = indent(line)
        while self._open and self._open[-1][1] >= depth:
            self._open.pop()
        self._open.append((line.strip(), depth))

    @property
    def titles(self) -> list[str]:
        """Outermost first."""
        return [title for title, _ in self._open]


def line_reader(pattern: str, statuses: Mapping[str, str], *, name: Callable[[str], str] = str) -> Reader:
    """A reader that matches `pattern` against each stripped line.

    The pattern names two groups, `word` and `test`; a word that `statuses` lacks is passed over.
    """
    regex = re.compile(pattern)

    def read(log: str) -> Words:
        words: Words = {}
        for line in lines(log):
            found = regex.match(line.strip())
            if found and found["word"] in statuses:
                words[name(found["test"])] = statuses[found["word"]]
        return words

    return read
