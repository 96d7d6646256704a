"""SWE-rebench V2's readers of C++'s, Dart's, Swift's and C#'s logs."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from patchwright.grade.parsers.rebench.lines import BLANKS, WORDS, Rule, by_rules, named, note, upto
from patchwright.grade.parsers.words import ERROR, FAILED, PASSED, SKIPPED, Words

# --- C++

_FAILURES = "=" * 35 + " FAILURES " + "=" * 35
_RULE = "_" * 27
_PYTEST = tuple((re.compile(BLANKS + word), word) for word in (PASSED, FAILED, SKIPPED, ERROR))


def read_cpp(log: str) -> Words:
    """pytest -v: `path::name PASSED`, by the name alone; below FAILURES nothing but headings counts."""
    found: Words = {}
    inside = False
    for line in map(str.strip, log.splitlines()):
        if line.startswith(_FAILURES):
            inside = True
        elif inside:
            if len(line) >= 56 and line.startswith(f"{_RULE} ") and line.endswith(f" {_RULE}"):
                note(found, line[28:-28], FAILED)
        elif hit := next(((cut, word) for ends, word in _PYTEST if (cut := ends.search(line))), None):
            name = line[: hit[0].start()].rsplit("::", 1)[-1]
            note(found, name, hit[1], keep=hit[1] == PASSED)
    return found


read_cpp_v2 = by_rules(
    Rule(name=upto(r"Test\s++", "passed$"), word=PASSED, keep=True),
    Rule(name=upto(r"Test\s++", "failed$"), word=FAILED),
    Rule(name=upto(r"Test\s++", "skipped$"), word=SKIPPED),
)
"""`Test name   passed`."""

_BOTAN = re.compile(
    BLANKS + r"ran\s++(\d++)\s++tests\s++in\s++[\d.]++\s++(?:msec|sec)\s++(.+)$", re.IGNORECASE
)
_BOTAN_FAILED = re.compile(r"\bfailed\b", re.IGNORECASE)
_NUMBER = re.compile(r"\[[0-9]++/[0-9]++\]\s*+")
_DOTS = re.compile(r"(?<!\s)\s*+\.\.\.\s*+\w++$")
_KEYWORDS = tuple(
    (re.compile(rf"\b(?:{words})\b", re.IGNORECASE), word)
    for words, word in (("SKIPPED", SKIPPED), ("FAILED|FAIL|Failure", FAILED), ("OK|PASSED", PASSED))
)


def read_cpp_v3(log: str) -> Words:
    """`[12/414] name... OK`, `name ran 3 tests in 1.2 msec all ok` (Botan), or any line with such a word,
    which then is a test's name itself."""
    found: Words = {}
    for line in map(str.strip, log.splitlines()):
        if botan := _BOTAN.search(line):
            word = FAILED if _BOTAN_FAILED.search(botan[2]) else PASSED
            note(found, f"{line[: botan.start()]} ran {botan[1]} tests {botan[2]}", word)
            continue
        keyword = next((word for sign, word in _KEYWORDS if sign.search(line)), None)
        number = _NUMBER.match(line)
        text = line[number.end() if number else 0 :]
        if dots := _DOTS.search(text):
            note(found, text[: dots.start()].strip(), keyword or ERROR)
        elif keyword:
            note(found, line, keyword)
    return found


_CTEST = re.compile(r"\s*+\d++/\d++\s++Test\s++#\d++:\s++", re.IGNORECASE)
_CTEST_WORD = re.compile(BLANKS + r"\.++\s++(Passed|Failed|Skipped|Timeout)\b", re.IGNORECASE)


def read_cpp_v4(log: str) -> Words:
    """CTest: `1/9 Test #1: name ....   Passed`."""
    found: Words = {}
    for line in log.splitlines():
        begin = _CTEST.match(line)
        word = _CTEST_WORD.search(line, begin.end() + 1) if begin else None
        if begin and word:
            note(found, line[begin.end() : word.start()].strip(), WORDS[word[1].upper()])
    return found


# --- Dart

_RESULTS = {"success": PASSED, "failure": FAILED, "error": ERROR}


def read_dart(log: str) -> Words:
    """`dart test --reporter json`: events, one a line."""
    found: Words = {}
    names: dict[Any, str] = {}
    for event in _events(log):
        if event.get("type") == "testStart":
            _begin(event.get("test"), names)
        elif event.get("type") == "testDone" and not event.get("hidden"):
            number, result = event.get("testID"), event.get("result")
            word = _RESULTS.get(result) if isinstance(result, str) else None
            word = word or (SKIPPED if event.get("skipped") else None)
            if word and isinstance(number, int | str) and number in names:
                found[names[number]] = word
    return found


def _begin(test: Any, names: dict[Any, str]) -> None:
    number, name = (test.get("id"), test.get("name")) if isinstance(test, dict) else (None, None)
    if isinstance(number, int | str) and isinstance(name, str) and not name.startswith("loading "):
        names[number] = name


def _events(log: str) -> Iterator[dict[str, Any]]:
    for line in map(str.strip, log.splitlines()):
        if not line.startswith(("{", "[")):
            continue
        try:
            decoded = json.loads(line)
        except (ValueError, RecursionError):
            continue
        yield from (
            one for one in (decoded if isinstance(decoded, list) else [decoded]) if isinstance(one, dict)
        )


_DART_V2 = re.compile(r"\[\w++\]:\s++\d{2}:\d{2}\s++\+\d++:\s++(/[^:]+\.dart):\s++(.+)$")


def read_dart_v2(log: str) -> Words:
    """Lines of packages' test runs; a test that is mentioned once only did not end."""
    rows = (row.strip() for row in log.splitlines() if "loading" not in row.lower())
    seen = Counter(f"{row[1]}: {row[2]}" for row in map(_DART_V2.match, rows) if row)
    return {test: PASSED if times > 1 else ERROR for test, times in seen.items()}


_DART_LOADING = re.compile(r"\d++:\d++\s++\+\d++\s++-\d++:\s++loading\s++(?P<test>/[^:]+\.dart)\s++\[E\]$")
_DART_TEST = re.compile(r"\d++:\d++\s++\+\d++(?:\s++-\d++)?:\s++(?P<file>/[^:]+\.dart):\s++(?P<test>.+)$")


def read_dart_v3(log: str) -> Words:
    """`00:01 +6 -1: /a_test.dart: name [E]`; a file that does not load is a test of its own."""
    found: Words = {}
    for line in map(str.strip, log.splitlines()):
        if loading := _DART_LOADING.match(line):
            found[loading["test"]] = ERROR
        elif test := _DART_TEST.match(line):
            failed = "[E]" in line
            note(
                found,
                f"{test['file']}: {_unmarked(test['test'])}",
                FAILED if failed else PASSED,
                keep=not failed,
            )
    return found


def _unmarked(name: str) -> str:
    cut = name.removesuffix("[E]")
    return cut.rstrip() if cut != name and cut[-1:].isspace() else name


# --- Swift, C#

read_swift = by_rules(
    *(
        Rule(
            name=named(rf"Test Case '(?P<test>[^']++)'\s++{word}\s++\([0-9.]++\s++seconds\)$", str),
            word=WORDS[word.upper()],
        )
        for word in ("passed", "failed")
    )
)
"""XCTest: `Test Case 'Suite.test' passed (0.1 seconds)`."""

_BRACKET = r"\[(?=..*\]$)"


def _dotnet(word: str) -> str:
    return rf"\s++{word}\s++"


read_csharp = by_rules(
    Rule(name=upto(r"\[xUnit\.net\s++[\d:.]++\]\s++", r"\[FAIL\]$"), word=FAILED),
    Rule(name=upto(_dotnet("Failed"), _BRACKET), word=FAILED),
    Rule(name=upto(_dotnet("Skipped"), _BRACKET), word=SKIPPED),
    Rule(name=named(_dotnet("Skipped") + r"(?P<test>.+)$"), word=SKIPPED),
    Rule(name=upto(_dotnet("Passed"), _BRACKET), word=PASSED, keep=True),
    prepare=str.rstrip,
)
"""dotnet test: `  Passed name [3 ms]`, `  Skipped name`, `[xUnit.net 00:00:01.2]   name [FAIL]`."""
