"""SWE-rebench V2's readers of Python's, Ruby's, PHP's, Lua's, R's and Julia's logs."""

from __future__ import annotations

import re

from patchwright.grade.parsers.blocks import PHP_SUITE, PHP_TEST, PHP_WORDS
from patchwright.grade.parsers.python import plain
from patchwright.grade.parsers.rebench.lines import (
    BLANKS,
    WORDS,
    Rule,
    by_rules,
    named,
    note,
    numbers,
    some,
    without_bracketed_time,
    without_ending,
)
from patchwright.grade.parsers.words import (
    ERROR,
    FAILED,
    PASSED,
    SKIPPED,
    UnreadableLog,
    Words,
    lines,
    nested,
)

STATUSES = (PASSED, FAILED, SKIPPED, ERROR)
"""V2 knows no XFAIL."""

_ANY = "|".join(STATUSES)

# --- Python

_WORKER = re.compile(rf"\[gw\d++\]\s++\[[^\]]*+\]\s++(?P<word>{_ANY})\b(?P<test>.*)$")
_FIRST = re.compile(rf"(?P<word>{_ANY})\s++(?P<test>.*)$")
_LAST = re.compile(BLANKS + rf"({_ANY})\s++\[")
_SECONDS = re.compile(r"\s++in\s++\d++(?:\.\d++)?s$")


def read_pytest_nebo(log: str) -> Words:
    """pytest-xdist with times: `[gw0] [ 5%] PASSED t`, `t PASSED [ 5%] in 0.1s`, or `PASSED t`."""
    found: Words = {}
    for line in (plain(raw).strip() for raw in log.splitlines()):
        worker = _WORKER.match(line)
        if worker and worker["test"][:1].isspace():
            note(found, worker["test"].lstrip().split(" in ")[0].strip(), worker["word"])
        elif last := _timed(line):
            note(found, line[: last.start()], last[1])
        elif first := _FIRST.match(line):
            note(found, first["test"].split(" in ")[0].strip(), first["word"])
    return found


def _timed(line: str) -> re.Match[str] | None:
    """The word in front of the line's last brackets, when nothing but a time follows those."""
    end = line.rfind("]")
    if end < 0 or not _SECONDS.match(line, end + 1):
        return None
    return _LAST.search(line, max(line.rfind("]", 0, end) + 1, 1), end)


# --- Ruby

_RUBY_SUITE = re.compile(r"[A-Z][A-Za-z0-9_]*+$")
_RUBY_TEST = re.compile(
    r"\s*+(?P<test>test[^A-Z\n]+?)(?:(?<!\s)|(?<=test\s))\s++"
    r"(?P<word>PASS(?:ED)?|FAIL(?:URE)?|ERROR|SKIP(?:PED)?)(?:\s*+\([0-9.]++s\))?$"
)
_RUBY_RANK = {PASSED: 0, SKIPPED: 0, FAILED: 1, ERROR: 2}


def read_ruby_v1(log: str) -> Words:
    """minitest-reporters: a class's name alone, then `test_a  PASS (0.02s)`; failures stay."""
    found: Words = {}
    suites: list[str] = []
    for line in map(str.rstrip, log.splitlines()):
        if _RUBY_SUITE.match(line):
            suites = [line]
        elif result := _RUBY_TEST.match(line):
            test, word = nested("::", suites, result["test"].strip()), WORDS[result["word"]]
            if test not in found or _RUBY_RANK[word] > _RUBY_RANK[found[test]]:
                found[test] = word
    return found


_RUBY_V2 = re.compile(BLANKS + r"=\s++[\d.]++\s++s\s++=\s++([.FES])$")
_RUBY_V2_WORDS = {".": PASSED, "F": FAILED, "E": FAILED, "S": SKIPPED}


def read_ruby_v2(log: str) -> Words:
    """minitest -v: `Class#test = 0.01 s = .`"""
    found: Words = {}
    for line in map(str.strip, log.splitlines()):
        result = _RUBY_V2.search(line)
        test = line[: result.start()] if result else ""
        if result and 0 < test.find("#", 1) < len(test) - 1:
            found[test] = _RUBY_V2_WORDS[result[1]]
    return found


# --- PHP


def read_phpunit(log: str) -> Words:
    """`phpunit --testdox`, names without their times."""
    found: Words = {}
    suite = "None"
    for line in lines(log):
        if title := PHP_SUITE.match(line):
            suite = title[1]
        elif test := PHP_TEST.match(line):
            name = nested(" > ", [suite], without_bracketed_time(test[2]))
            found[name] = PHP_WORDS[test[1]]
    return found


_PEST_NOISE = ("___", "---", "Tests:", "Duration:")
_PEST_SUITE = re.compile(r"\s*+FAIL(?:ED)?\s++(?P<test>\S.+)$", re.IGNORECASE)
_PEST_TEST = re.compile(r"\s*+([⨯xX✓✔-])\s++(?P<test>.+)$")
_PEST_WORDS = {"⨯": FAILED, "x": FAILED, "-": SKIPPED, "✓": PASSED, "✔": PASSED}
_PEST_TIME = re.compile(r"(?<!\s)\s{2,}+\d++\.?+\d*+s\b")
_PEST_ENDS = tuple(re.compile(rf"(?<!\s)\s{least}+\d++(?:\.\d++)?s$") for least in ("{2,}", "+"))
_PEST_SKIPPED = re.compile(r"\(skipped\)|\bSKIPPED\b", re.IGNORECASE)


def read_php_v1(log: str) -> Words:
    """Pest and artisan: `✓ name  0.03s`, `⨯ name`, `- name`, `FAIL Suite`; passed suites are not seen."""
    found: Words = {}
    for line in map(str.rstrip, log.splitlines()):
        if line.lstrip().startswith(_PEST_NOISE):
            continue
        if suite := _PEST_SUITE.match(line):
            note(found, _pest_name(suite["test"]), FAILED)
        elif test := _PEST_TEST.match(line):
            word = _PEST_WORDS[test[1].lower()]
            took = _PEST_TIME.search(test["test"], 1)
            name = _pest_name(test["test"][: took.start() if took else None])
            note(found, name, word, keep=word == PASSED)
        elif _PEST_SKIPPED.search(line):
            note(found, _pest_name(line), SKIPPED, keep=True)
    return found


def _pest_name(text: str) -> str:
    text = text.rstrip()
    for ending in _PEST_ENDS:
        if took := ending.search(text):
            text = text[: took.start()]
    return text.strip()


# --- Lua


_NVIM = r"\s*+\|\|(?P<test>.+)$"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

read_nvim = by_rules(
    Rule(name=named("Fail(?:ed)?" + _NVIM), word=FAILED),
    Rule(name=named("(?i:Skip(?:ped)?)" + _NVIM), word=SKIPPED, keep=True),
    Rule(name=named("Success" + _NVIM), word=PASSED, keep=True),
    prepare=lambda line: _COLOUR.sub("", line).rstrip(),
)
"""plenary.nvim: `Success || suite test`."""

# --- R

_R_TIME = re.compile(r"\[\s*\d+(?:\.\d+)?\s*[a-zA-Z]+\]")
_R_CONTEXT = re.compile(r"([✔✖])\s++\|[^|]++\|\s++(.+)$")
_R_FAILURE = re.compile(r"(Failure|Error)\s++\([^)]++\):\s++(.+)$")
_R_FAILURES = ("── Failed tests ──", "== Failed tests ==")
_R_RESULTS = ("[ FAIL", "══ Results ══")


def read_r(log: str) -> Words:
    """testthat: `✔ | 60 | context`, `✖ | 2 9 | context`, then single failures under `── Failed tests`."""
    found: Words = {}
    rows = [row.strip() for row in log.splitlines()]
    for result in filter(None, map(_R_CONTEXT.match, rows)):
        note(found, _r_name(result[2]), PASSED if result[1] == "✔" else FAILED)
    inside = False
    for row in rows:
        if row.startswith(_R_FAILURES):
            inside = True
        elif inside and row.startswith(_R_RESULTS):
            break
        elif inside and (failure := _R_FAILURE.match(row)):
            note(found, _r_name(failure[2]), FAILED if failure[1] == "Failure" else ERROR)
    return found


def _r_name(text: str) -> str:
    return without_ending(text.strip(), "[", _R_TIME).strip()


_R_CHECK = "* checking "
_R_WORD = re.compile(r"[A-Z]+")
_R_WORDS = {
    "OK": PASSED,
    **dict.fromkeys(("NOTE", "NOTES"), PASSED),
    **dict.fromkeys(("WARNING", "WARNINGS", "FAIL", "FAILED"), FAILED),
    **dict.fromkeys(("ERROR", "ERRORS"), ERROR),
    "SKIPPED": SKIPPED,
}


def read_r_v2(log: str) -> Words:
    """R CMD check: `* checking name ... OK`, the word perhaps some lines below; a word unknown is a pass."""
    found: Words = {}
    waiting = ""
    for line in filter(None, map(str.strip, log.splitlines())):
        if waiting:
            word = _R_WORDS.get(_first_word(line))
            note(found, waiting if word else "", word or "")
            waiting = "" if word else waiting
        elif line.startswith(_R_CHECK):
            check, dots, word = line[len(_R_CHECK) :].rpartition(" ... ")
            if dots and _R_WORD.fullmatch(word):
                note(found, check, _R_WORDS.get(word, PASSED))
            elif line.endswith(" ..."):
                waiting = line[len(_R_CHECK) : -4]
    note(found, waiting, PASSED, keep=True)
    return found


def _first_word(line: str) -> str:
    words = line.strip(".:!").split()
    if not words:
        raise UnreadableLog(f"no word follows a check, but {line[:200]!r}")
    return words[0].upper()


# --- Julia

_JULIA_ROW = re.compile(BLANKS + r"\|(?=.)")


def read_julia(log: str) -> Words:
    """The table under `Test Summary: | Pass Fail Error Total`, one row a test set; numbers alone tell the
    columns apart, so that what a number counts is a guess."""
    found: Words = {}
    header: str | None = None
    for row in log.splitlines():
        if "Test Summary:" in row:
            header = row.split("|")[1] if "| Pass" in row else header or ""
        elif header is not None and (bar := _JULIA_ROW.search(row, len(row) - len(row.lstrip()) + 1)):
            columns = row[bar.end() :]
            counts = list(numbers(columns.split()))
            if len(counts) >= 2:
                note(found, row[: bar.start()].strip(), _julia_word(header, columns, counts))
    return found


def _julia_word(header: str, columns: str, counts: list[str]) -> str:
    if len(counts) == 2:
        alone = len(columns) - len(columns.lstrip()) >= 10  # the column of passes is empty
        return ERROR if alone or counts[0] != counts[1] else PASSED
    if len(counts) == 3:
        bad = FAILED if "Fail" in header and "Error" not in header else ERROR
        return bad if some(counts[1]) else PASSED
    return ERROR if some(counts[2]) else FAILED if some(counts[1]) else PASSED
