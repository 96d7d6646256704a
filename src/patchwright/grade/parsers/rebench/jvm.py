"""SWE-rebench V2's readers of logs from the JVM: Maven, Gradle, ScalaTest, Leiningen."""

from __future__ import annotations

import re
from collections.abc import Callable

from patchwright.grade.parsers.blocks import read_maven4
from patchwright.grade.parsers.rebench.junit import read_junit
from patchwright.grade.parsers.rebench.lines import BLANKS, WORDS, Rule, by_rules, closing, note, some, upto
from patchwright.grade.parsers.words import ERROR, FAILED, PASSED, SKIPPED, Words, lines, nested

_COUNTS = re.compile(
    r"Tests run:\s*+(\d++),\s*+Failures:\s*+(\d++),\s*+Errors:\s*+(\d++),\s*+Skipped:\s*+(\d++)"
)
_RUNNING = re.compile(r"(?:\[INFO\]\s++)?Running\s++([A-Za-z0-9_$.]++)$")
_FAILURE = re.compile(r"\[ERROR\]\s++([A-Za-z0-9_$.]++)")
_LINE_NUMBER = re.compile(r":\d++\b")
_EDGE = re.compile(r"\b")


def read_java_mvn(log: str) -> Words:
    """Surefire: `[ERROR] class.method:line`, and per class `Running class` with its counts. What JUnit's XML
    or single tests' builds say counts where that says nothing."""
    found: Words = {}
    running = ""
    seen: Words = {}
    for line in map(str.strip, log.splitlines()):
        if begun := _RUNNING.match(line):
            running = begun[1]
            seen[running] = PASSED
        elif failed := _failure(line):
            died = "Exception" in line and "AssertionError" not in line
            found[".".join(failed)] = ERROR if died else FAILED
            note(found, failed[0], FAILED, keep=True)
        elif counts := _COUNTS.search(line):
            name = line.rsplit(" in ", 1)[-1].strip().rstrip(".:;") if " in " in line else running
            note(found, name, _word_of(counts), keep=True)
            running = ""
    found = {**read_maven4(log), **read_junit(log), **found}
    return found or seen


def _word_of(counts: re.Match[str]) -> str:
    _, failures, errors, skipped = counts.groups()
    if some(failures) or some(errors):
        return FAILED
    return SKIPPED if some(skipped) else PASSED


def _failure(line: str) -> tuple[str, str] | None:
    """Class and method: split at the last dot behind which a word ends, the method up to that word's end."""
    token = _FAILURE.match(line)
    if token is None:
        return None
    start, end = token.span(1)
    edges = []
    for edge in _EDGE.finditer(line, start):
        if edge.start() > end:
            break
        edges.append(edge.start())
    if _LINE_NUMBER.match(line, end):
        edges.append(end)
    dot = line.rfind(".", start + 1, edges[-1] - 1) if edges else -1
    if dot < 0:
        return None
    return line[start:dot], line[dot + 1 : next(edge for edge in edges if edge >= dot + 2)]


_MODULE = re.compile(r"\[INFO\]\s++")
_MODULE_WORD = re.compile(BLANKS + r"\.{2,}+\s++(SUCCESS|FAILURE|SKIPPED)(?=\s|\[|$)")


def read_java_mvn_v2(log: str) -> Words:
    """Maven's summary of modules, `[INFO] module ..... SUCCESS [1 s]`; the first counts are `__suite__`."""
    found: Words = {}
    for line in map(str.strip, log.splitlines()):
        module = _MODULE.match(line)
        word = _MODULE_WORD.search(line, module.end() + 1) if module else None
        if module and word:
            note(found, line[module.end() : word.start()], WORDS.get(word[1], SKIPPED))
        elif counts := _COUNTS.search(line):
            note(found, "__suite__", _suite_word(*counts.groups()), keep=True)
    return found


def _suite_word(run: str, failures: str, errors: str, skipped: str) -> str:
    if some(failures) or some(errors):
        return FAILED if some(failures) else ERROR
    return SKIPPED if run.lstrip("0") == skipped.lstrip("0") else PASSED


_CLASS = re.compile(r"Running\s++(.+)$")
_CLASS_COUNTS = re.compile(_COUNTS.pattern.replace(r"\s*+", r"\s++"))


def read_kotlin_junit(log: str) -> Words:
    """Surefire's classes alone: `Running class`, then its counts."""
    found: Words = {}
    current = ""
    for line in map(str.strip, log.splitlines()):
        if begun := _CLASS.match(line):
            current = begun[1]
        elif counts := _CLASS_COUNTS.match(line):
            note(found, current, _word_of(counts))
            current = ""
    return found


# a name of one character needs a second one, and a blank will do
_GRADLE = re.compile(r"(?:(?<!\s)|(?<=^.\s))\s++(PASSED|FAILED)(?:\s++\(\d++(?:\.\d++)?s\))?$")


def read_gradle(log: str) -> Words:
    """`Class > test PASSED (0.1s)`."""
    found: Words = {}
    for line in map(str.strip, lines(log)):
        if not line.startswith(">") and (word := _GRADLE.search(line, 2)):
            found[line[: word.start()]] = word[1]
    return found


# --- Scala

_TEST = r"\[info\]\s++-\s++"
_IN_TEST = re.compile(_TEST)


def _scala(mark: str) -> re.Pattern[str]:
    return re.compile(BLANKS + mark + r"\(")


_SCALA = (
    (_scala(r"\*\*\*\s++FAILED\s++\*\*\*\s++"), FAILED),
    (_scala(r"!!!\s++CANCELED\s++!!!\s++"), SKIPPED),
)
_SCALA_IGNORED = upto(_TEST, r"!!!\s++IGNORED\s++!!!")
_SCALA_PASSED = _scala("")


def _scala_name(opening: re.Pattern[str]) -> Callable[[str], str | None]:
    def name(line: str) -> str | None:
        begin = _IN_TEST.match(line)
        at = closing(line, opening, begin.end() + 1) if begin else -1
        return line[begin.end() : at] if begin and at >= 0 else None

    return name


read_scala = by_rules(
    *(Rule(name=_scala_name(opening), word=word) for opening, word in _SCALA),
    Rule(name=_SCALA_IGNORED, word=SKIPPED),
    Rule(name=_scala_name(_SCALA_PASSED), word=PASSED, keep=True),
)
"""ScalaTest: `[info] - name *** FAILED *** (1 second)`, with `!!! CANCELED !!!` or the time alone."""

_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\[[0-9]{1,2}m")
_TOOK = r"[\d.]++[mμn]?+s"
_SIGNS = {"x": (FAILED, "31"), "+": (PASSED, "32")}
_SIGN = re.compile(r"([x+])\s++")
_SIGN_TIME = re.compile(BLANKS + _TOOK + r"$")
_PAINTED = {
    sign: re.compile(rf"{re.escape(sign)}\s++\[0m\[{colour}m(?P<test>.*?)\[0m\s++\[90m{_TOOK}\[0m$")
    for sign, (_, colour) in _SIGNS.items()
}


def read_scala_v2(log: str) -> Words:
    """munit: `+ name 0.1s`, `x name 0.1s`, in colours or in what is left of them without their first byte."""
    found: Words = {}
    for line in map(str.strip, log.splitlines()):
        plain = _COLOURS.sub("", line).strip()
        sign = _SIGN.match(plain)
        took = _SIGN_TIME.search(plain, sign.end() + 1) if sign else None
        if sign and took:
            painted = _PAINTED[sign[1]].match(line)
            note(found, painted["test"] if painted else plain[sign.end() : took.start()], _SIGNS[sign[1]][0])
    return found


_STARS = re.compile(BLANKS + r"\*{3}\s++([A-Z]++)\s++\*{3}$")
_SCALA_WORDS = {
    **{word: word for word in (PASSED, FAILED, ERROR, SKIPPED)},
    "ABORTED": ERROR,
    **dict.fromkeys(("IGNORED", "CANCELED", "CANCELLED", "PENDING"), SKIPPED),
}
_SCALA_TIME = re.compile(r"\(\d+\s+\w+\)")
_NO_SUITE = (
    *("Run completed", "Total number", "Suites:", "Tests:", "All tests", "compiling"),
    *("done compiling", "loading", "welcome to", "set current"),
)


def read_scala_v3(log: str) -> Words:
    """ScalaTest: `[info] suite`, `[info] - name *** FAILED ***`; nearly every other line is a suite's title.
    A time after the stars hides them, so that such a failure counts as passed, under a name with stars."""
    found: Words = {}
    suites: list[str] = []
    for line in map(str.strip, log.splitlines()):
        if begin := _IN_TEST.match(line) if line.startswith("[info] -") else None:
            stars = _STARS.search(line, begin.end() + 1)
            test = line[begin.end() : stars.start() if stars else None].strip()
            test = nested(": ", suites, _without_scala_time(test))
            word = _SCALA_WORDS.get(stars[1], stars[1]) if stars else PASSED
            note(found, test, word, keep=stars is None)
        elif line.startswith("[info]") and line[6:7].isspace() and line[7:8] != "-":
            title = line[6:].strip()
            suites = suites if any(word in title for word in _NO_SUITE) else [title]
    return found


def _without_scala_time(test: str) -> str:
    at = test.rfind("(")
    return test[:at].rstrip() if at >= 0 and _SCALA_TIME.fullmatch(test, at) else test


_LEIN_WORDS = {"FAIL in": FAILED, "ERROR in": ERROR}


def read_lein(log: str) -> Words:
    """`lein test ns ns`, then `FAIL in` and `ERROR in`, which belong to the last namespace named."""
    found: Words = {}
    current = ""
    for line in map(str.strip, log.splitlines()):
        if line.startswith("lein test "):
            current = _namespaces(line.split()[2:], found, current)
            continue
        for mark, word in _LEIN_WORDS.items():
            if current and line.startswith(mark):
                found[current] = word
    return found


def _namespaces(words: list[str], found: Words, current: str) -> str:
    """Note those a run names as passed so far; the one that its failures belong to."""
    if words[0] == ":only":
        words = [" ".join(words[1:]).split("/", 1)[0].strip()]
    for word in words:
        note(found, word, PASSED, keep=True)
    return words[-1] if words else current
