"""Official parsers of logs in which a result and its test stand on different lines: Java, PHP, C++ XML."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from collections import deque
from collections.abc import Iterator

from patchwright.grade.parsers.words import FAILED, PASSED, SKIPPED, UnreadableLog, Words, lines, nested

_MAVEN_TEST = re.compile(r".*-Dtest=(\S+)")
_MAVEN_WORDS = {"SUCCESS": PASSED, "FAILURE": FAILED}
_NO_TEST = "---NO TEST NAME FOUND YET---"


def _maven_events(log: str) -> list[tuple[str, str]]:
    """(`test`, its name) for a command that runs one test, (`build`, word) for the end of one."""
    events = []
    for line in map(str.strip, lines(log)):
        if test := _MAVEN_TEST.match(line):
            events.append(("test", test[1]))
        for ending, word in _MAVEN_WORDS.items():
            if line.endswith(f"BUILD {ending}"):
                events.append(("build", word))
    return events


def read_maven(log: str) -> Words:
    """Maven does not name passed tests, so each test is a run of its own, named by the traced command, and
    the nth `BUILD` belongs to the nth command still open; builds without one wait for those that follow."""
    found: Words = {}
    tests: deque[str] = deque()
    spare: deque[str] = deque()
    for kind, value in _maven_events(log):
        if kind == "test":
            tests.append(value)
        elif tests:
            found[tests.popleft()] = value
        else:
            spare.append(value)
    found.update(zip(tests, spare, strict=False))
    return found


def read_maven4(log: str) -> Words:
    """Before 5.0: a `BUILD` belongs to the last command, or to a test that has this very odd name."""
    found: Words = {}
    current = _NO_TEST
    for kind, value in _maven_events(log):
        if kind == "test":
            current = value
        else:
            found[current] = value
    return found


_GRADLE_TEST = re.compile(r"[^>]\S*\s+>\s+\S+")


def _gradle_line(line: str) -> tuple[str, str] | None:
    """`name PASSED`: the test and its word; the name has two characters or more and no `>` in front."""
    name, word = line[:-7], line[-6:]
    if word in (PASSED, FAILED) and len(name) > 1 and name[0] != ">" and line[-7].isspace():
        return name, word
    return None


def read_gradle(log: str) -> Words:
    """`Class > test PASSED`; or the name and, on a later line, the word alone."""
    found: Words = {}
    waiting = ""
    for line in map(str.strip, lines(log)):
        if whole := _gradle_line(line):
            found[whole[0]] = whole[1]
            waiting = ""
        elif _GRADLE_TEST.fullmatch(line):
            waiting = line
        elif waiting and line in (PASSED, FAILED):
            found[waiting] = line
            waiting = ""
    return found


def read_gradle4(log: str) -> Words:
    """Before 5.0: name and word on one line only."""
    return dict(filter(None, map(_gradle_line, map(str.strip, lines(log)))))


PHP_SUITE = re.compile(r"(?=.*\)$)(\w.+) \(.+\)$")
PHP_TEST = re.compile(r"\s*([✔✘↩])\s*(.*)$")
PHP_WORDS = {"✔": PASSED, "✘": FAILED, "↩": SKIPPED}


def read_phpunit(log: str) -> Words:
    """`phpunit --testdox`: `Suite (Class)`, then its tests; before any suite the suite is called `None`."""
    found: Words = {}
    suite = "None"
    for line in lines(log):
        if title := PHP_SUITE.match(line):
            suite = title[1]
        elif test := PHP_TEST.match(line):
            found[nested(" > ", [suite], test[2])] = PHP_WORDS[test[1]]
    return found


def read_doctest(log: str) -> Words:
    """C++ doctest's XML (`-s -r=xml`): a subcase passed when each of its expressions did."""
    start = log.find("<doctest")
    if start < 0:
        return {}
    # without an end the official slice is cut nine characters in, and no XML
    end = log.find("</doctest>", start) + len("</doctest>")
    try:
        root = ET.fromstring(log[start:end])
    except (ET.ParseError, RecursionError, ValueError) as error:
        raise UnreadableLog(f"not the XML that doctest writes: {error}") from error
    failed = _failed_parts(root)
    return {
        f"{case.get('name')} > {sub.get('name')}": FAILED if sub in failed else PASSED
        for case in _cases(root)
        for sub in case.findall(".//SubCase")
    }


def _cases(root: ET.Element) -> Iterator[ET.Element]:
    """The test cases. Raises UnreadableLog for one within another, which doctest never writes: such a log has
    as many results as the square of its length."""
    for case in root.iterfind(".//TestCase"):
        if next(itertools.islice(case.iter("TestCase"), 1, None), None) is not None:
            raise UnreadableLog("a test case within a test case")
        yield case


def _failed_parts(root: ET.Element) -> set[ET.Element]:
    """Every element with an expression below it that did not succeed."""
    parents = {child: parent for parent in root.iter() for child in parent}
    failed: set[ET.Element] = set()
    for expression in root.iter("Expression"):
        part = parents.get(expression) if expression.get("success") != "true" else None
        while part is not None and part not in failed:
            failed.add(part)
            part = parents.get(part)
    return failed
