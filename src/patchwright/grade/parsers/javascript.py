"""Readers of JavaScript logs with nested suites or JSON: mocha, jest, karma and their reporters.

Each is bound to one project's reporter and known by that project's name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping

from patchwright.grade.parsers.words import (
    FAILED,
    PASSED,
    Reader,
    Suites,
    UnreadableLog,
    Words,
    indent,
    lines,
    nested,
    tails,
    without_ansi,
)

# --- one result per file: `PASS path (3.2 s)`

_FILE_TIMES = (r"\s\([\d.]+ms\)", r"\s\([\d.]+\ss\)", r"\s\([\d.]+s\)", "")
_FILE_LINES = tuple(re.compile(rf"(PASS|FAIL)\s(.*){time}") for time in _FILE_TIMES)
_FILE_WORDS = {"FAIL": FAILED, "PASS": PASSED}


def read_jest_files(log: str) -> Words:
    """`PASS path (time)` line by line; the time is cut off at its last mention, milliseconds first."""
    found: Words = {}
    for line in lines(log):
        match = next(filter(None, (pattern.match(line) for pattern in _FILE_LINES)), None)
        if match:
            found[match[2]] = _FILE_WORDS[match[1]]
    return found


def jest_files_reader(*, time: str = "") -> Reader:
    """`PASS path` anywhere at the start of a line, even with the path on the next one; a file that both
    failed and passed has passed."""
    cut = re.compile(time) if time else None
    patterns = [(re.compile(rf"^{word}\s(.*)", re.MULTILINE), status) for word, status in _FILE_WORDS.items()]

    def read(log: str) -> Words:
        found: Words = {}
        for pattern, status in patterns:
            for name in pattern.findall(log):
                found[cut.sub("", name.strip()) if cut else name.strip()] = status
        return found

    return read


# --- suites told by indentation


def _titled(suites: Suites, test: str) -> str:
    return nested(" - ", suites.titles, test)


_CALYPSO = {"✓": PASSED, "✕": FAILED}
_CALYPSO_TIME = re.compile(r"\(\d+ms\)")


def read_calypso(log: str) -> Words:
    """Jest's tree, one run per traced command, up to that run's summary; suites outlive their run."""
    found: Words = {}
    suites = Suites()
    for run in log.split(" ./node_modules/.bin/jest ")[1:]:
        for line in lines(run):
            if line.startswith(("Test Suites", "  ● ")):
                break
            if line.strip()[:1] in _CALYPSO:
                # outside any suite the name keeps the dash that would have followed the suite
                name = nested(" - ", suites.titles or [""], _calypso_test(line)).strip()
                found[name] = _CALYPSO[line.strip()[0]]
            elif indent(line):
                suites.enter(line)
    return found


def _calypso_test(line: str) -> str:
    """The name, without `(12ms)` at the end. Raises UnreadableLog where the official parser finds no name:
    a tick at the very start of the line, or a time in the middle of it."""
    tick = line.strip()[0]
    ending = r"\(\d+ms\)$" if _CALYPSO_TIME.search(line) else ""
    match = re.match(rf"\s+{tick}\s(.*){ending}", line)
    if match is None:
        raise UnreadableLog(f"no test in {line[:200]!r}")
    return match[1]


_NEXT_ERROR = re.compile(r"AssertionError:\s+#")
_NEXT_NOISE = ("ERROR", "LOG", "WARN", "Check", "in")


def read_next_v1(log: str) -> Words:
    """Karma's tree of alibaba-fusion/next, one run per traced `xvfb-run`, up to its TOTAL."""
    found: Words = {}
    suites = Suites()
    for run in _without_errors(without_ansi(log)).split(" xvfb-run ")[1:]:
        for line in lines(run.split("Starting browser Chrome")[-1]):
            if line.startswith("TOTAL"):
                break
            if line.strip().startswith(_NEXT_NOISE):
                continue
            for mark, status in {"✗": FAILED, "✓": PASSED}.items():
                if mark in line:
                    found[_titled(suites, line.split(mark, 1)[1].lstrip())] = status
                    break
            else:
                if indent(line):
                    suites.enter(line)
    return found


def _without_errors(log: str) -> str:
    """Cut out what stands from an assertion's error to the next empty line."""
    kept, at = [], 0
    while (error := _NEXT_ERROR.search(log, at)) and (end := log.find("\n\n", error.end())) >= 0:
        kept.append(log[at : error.start()])
        at = end + 2
    return "".join([*kept, log[at:]])


_NEXT_SUITE = re.compile(r"\)\n{3}\s{2}(.*)\n")
_NEXT_TESTS = (
    (re.compile(r"^\s{4}\d+\)\s(.*)", re.MULTILINE), FAILED),
    (re.compile(r"^\s{4}✓\s(.*)\(", re.MULTILINE), PASSED),
)


def read_next_v2(log: str) -> Words:
    """Cypress' tree, as next 1.27 has it: `Running: file`, the suite two lines below, its tests."""
    found: Words = {}
    suites = list(_next_suites(log))
    starts = [*(start for start, _, _ in suites), len(log)]
    for (_, title, end), stop in zip(suites, starts[1:], strict=True):
        for pattern, status in _NEXT_TESTS:
            tests = (test.strip() for test in pattern.findall(log[end:stop]))
            found.update((nested(": ", [title], test), status) for test in tests)
    return found


def _next_suites(log: str) -> Iterator[tuple[int, str, int]]:
    """Where a suite's announcement starts, its title, where its tests begin."""
    at = done = 0
    while suite := _NEXT_SUITE.search(log, at):
        line = log.rfind("\n", 0, suite.start()) + 1
        start = log.find("Running:", max(line, done), suite.start())
        at = suite.start() + 1 if start < 0 else suite.end()
        if start >= 0:
            done = suite.end()
            yield start, suite[1], done


_MOCHA_LINES = tuple(
    (re.compile(mark + r"\s(.*)" + time), status)
    for mark, status in (("✔", PASSED), (r"\d+\)", FAILED))
    for time in (r"\s\(\d+m+s\)", "")
)


def read_lighthouse_mocha(log: str) -> Words:
    """Mocha's tree of lighthouse 9.5 to 10.2, one per `running N test files`, up to `N passing`."""
    found: Words = {}
    for run in re.split(r"running\s\d+\stest\sfiles", log)[1:]:
        suites = Suites()
        for line in lines(re.split(r"(?<!\d)\d++\spassing", run, maxsplit=1)[0].strip()):
            matches = ((pattern.match(line.strip()), status) for pattern, status in _MOCHA_LINES)
            match, status = next(((m, s) for m, s in matches if m), (None, ""))
            if match:
                found[_titled(suites, match[1])] = status
            elif indent(line):
                suites.enter(line)
    return found


_TIME_MS = re.compile(r"\(\d+ms\)")


def read_highlightjs(log: str) -> Words:
    """Mocha's tree up to `N passing`; every line that is indented and no test is the suite, alone."""
    found: Words = {}
    suite: list[str] = []
    for line in lines(re.split(r"\n[ \t]*\d+ passing", log, maxsplit=1)[0]):
        text = line.strip()
        if text[:1] in ("✓", "✔"):
            found[_dotted(suite, text[1:])] = PASSED
        elif re.match(r"\d+\)", text):
            found[_dotted(suite, line.split(")", 1)[1])] = FAILED
        elif line.startswith("  "):
            suite = [text]
    return found


def _dotted(suite: list[str], test: str) -> str:
    return nested(".", suite, _TIME_MS.sub("", test).strip())


_PLOTLY_NAME = r"(?:\s++(.*?)(?<!\s)\s++:|\s{2,}+:)"
_PLOTLY_SUITE = re.compile(rf"(\s+)-{_PLOTLY_NAME}")
_PLOTLY_TEST = re.compile(rf"(\s+)\*{_PLOTLY_NAME}\s*(.*)")


def read_plotly(log: str) -> Words:
    """`- suite :` and `* test : ok`; one that is not deeper than the last suite leaves all of them."""
    found: Words = {}
    suites: list[str] = []
    depth = 0
    for line in lines(log):
        match = _PLOTLY_SUITE.match(line) or _PLOTLY_TEST.match(line)
        if match is None:
            continue
        if len(match[1]) <= depth:
            suites = []
        if match.re is _PLOTLY_SUITE:
            suites.append(match[2] or "")
            depth = len(match[1])
        else:
            word = match[3].lower()
            good = "ok" in word and "failed" not in word
            found[nested(".", suites, match[2] or "")] = PASSED if good else FAILED
    return found


_KARMA = re.compile(r"(\s*)([✔✖])?\s(.*)$")


def read_karma(log: str) -> Words:
    """Karma's tree (preact), from `Starting browser` to `SUMMARY:`.

    A title that is less deep than the one before closes one suite and is not entered itself; one as deep as
    the one before is passed over.
    """
    found: Words = {}
    suites: list[str] = []
    depth = -1
    for line in _karma_tree(log):
        match = _KARMA.match(line)
        if match is None:
            continue
        room, mark, text = match.groups()
        if mark:
            found[nested(" > ", suites, text)] = PASSED if mark == "✔" else FAILED
        elif room and len(room) != depth:
            if len(room) > depth:
                suites.append(text)
            elif suites:
                suites.pop()
            else:
                raise UnreadableLog("a suite is closed that was never opened")
            depth = len(room)
    return found


def _karma_tree(log: str) -> list[str]:
    """The lines between the browser's start and the summary."""
    tree: list[str] = []
    started = False
    for line in lines(log):
        if line.startswith("SUMMARY:"):
            break
        if "Starting browser" in line:
            started = True
        elif started:
            tree.append(line)
    return tree


# --- JSON reporters


def read_prismjs(log: str) -> Words:
    """Mocha's JSON after each traced command, first `{` to last `}`; a test in both lists has passed."""
    found: Words = {}
    for run in log.split("./node_modules/.bin/mocha tests/run.js --reporter json")[1:]:
        try:
            report = json.loads("{" + run.split("{", 1)[-1].rsplit("}", 1)[0] + "}")
            found.update((test["fullTitle"], FAILED) for test in report["failures"])
            found.update((test["fullTitle"], PASSED) for test in report["passes"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UnreadableLog(f"not the JSON that mocha writes: {error!r}") from error
    return found


_TITLE = re.compile(r'"fullTitle":\s"')


def _titles_reader(runs: Callable[[str], list[str]], ends: Mapping[str, tuple[str, str]]) -> Reader:
    """Titles in the lists of mocha's JSON, found as text: `ends` gives each status its list's first and last
    words."""

    def read(log: str) -> Words:
        found: Words = {}
        for run in runs(log):
            for status, (first, last) in ends.items():
                part = run.split(first)[-1].rsplit(last, 1)[0]
                found.update(dict.fromkeys(tails(part, _TITLE, '",'), status))
        return found

    return read


read_cypress = _titles_reader(
    lambda log: log.split("../..")[:-1],
    {PASSED: ('  "passes": [', "  }"), FAILED: ('  "failures": [', "  ],")},
)
"""Cypress' reports, each ended by `../..`; a test in both lists has failed."""

read_lighthouse_json = _titles_reader(
    lambda log: log.split("./node_modules/.bin/mocha --reporter json")[1:],
    {PASSED: ('"passes": [', "]"), FAILED: ('"failures": [', "],")},
)
"""lighthouse before version 3."""
