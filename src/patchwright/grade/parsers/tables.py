"""Official parsers that read one line at a time: a pattern and what its words mean.

The names are the official ones. Lines are stripped before they are matched.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from patchwright.grade.parsers.words import FAILED, PASSED, SKIPPED, Reader, Words, line_reader, lines

_TICKS = {"✓": PASSED, "✕": FAILED, "○": SKIPPED}
_JEST = r"(?P<word>[✓✕○])\s(?P<test>.+?)(?:\s\(\d+\s*m?s\))?$"
_RSPEC = {"passed": PASSED, "failed": FAILED}

LINE_READERS: Mapping[str, Reader] = {
    "parse_log_gotest": line_reader(
        r"--- (?P<word>PASS|FAIL|SKIP): (?=.*\)$)(?P<test>.+) \(.+\)$",
        {"PASS": PASSED, "FAIL": FAILED, "SKIP": SKIPPED},
    ),
    # "ignored" tests are not seen
    "parse_log_cargo": line_reader(
        r"test\s+(?P<test>\S+)\s+\.\.\.\s+(?P<word>\w+)$", {"ok": PASSED, "FAILED": FAILED}
    ),
    "parse_log_jq": line_reader(r"(?P<word>PASS|FAIL):\s(?P<test>.+)$", {"PASS": PASSED, "FAIL": FAILED}),
    "parse_log_micropython_test": line_reader(
        r"(?P<word>pass|FAIL|skip)\s+(?P<test>.+)$", {"pass": PASSED, "FAIL": FAILED, "skip": SKIPPED}
    ),
    "parse_log_ant": line_reader(
        r"\[junit\]\s+\[(?P<word>PASS|FAIL|ERR)\]\s+(?P<test>.*)$",
        {"PASS": PASSED, "FAIL": FAILED, "ERR": FAILED},
    ),
    "parse_log_cucumber": line_reader(r"(?P<test>.*) \.+(?P<word>\.|F)", {".": PASSED, "F": FAILED}),
    "parse_log_ruby_unit": line_reader(
        r"(?:test: )?(?P<test>.+):\s+(?P<word>\.|E\b|F\b|O\b)",
        {".": PASSED, "E": FAILED, "F": FAILED, "O": SKIPPED},
    ),
    # the last " - passed" or " - failed" of the line decides, whatever follows it; "pending" is not seen
    "parse_log_rspec_transformed_json": line_reader(r"(?P<test>.+) - (?P<word>passed|failed)", _RSPEC),
    "parse_log_jest": line_reader(_JEST, _TICKS, name=str.strip),
    "parse_log_jest_json": line_reader(
        r"\[(?P<word>PASSED|FAILED)\]\s(?P<test>.+)$", {"PASSED": PASSED, "FAILED": FAILED}
    ),
    "parse_log_vitest": line_reader(
        r"(?P<word>[✓×↓])\s(?P<test>.+?)(?:\s(?:\d+\s*m?s?|\[skipped\]))?$",
        {"✓": PASSED, "×": FAILED, "↓": SKIPPED},
    ),
    "parse_log_tap": line_reader(r"(?P<word>ok|not ok) \d+ (?P<test>.+)$", {"ok": PASSED, "not ok": FAILED}),
}

read_jest4 = line_reader(_JEST, _TICKS)
"""Before 5.0 blanks around a test's name were part of it."""

_REDIS = re.compile(r"\[(ok|err|skip|ignore)\]:\s(.+?)(?:\s\(\d+\s*m?s\))?$")
_REDIS_PLACE = re.compile(r"(?<!\s)\s++in\s++\S++$")
_REDIS_WORDS = {"ok": PASSED, "err": FAILED, "skip": SKIPPED, "ignore": SKIPPED}


def read_redis(log: str) -> Words:
    """Tcl tests of redis and valkey; a failure's name ends with the file it is in, which is taken off."""
    found: Words = {}
    for line in lines(log):
        match = _REDIS.match(line.strip())
        if match:
            word, test = match.groups()
            found[_REDIS_PLACE.sub("", test) if word == "err" else test] = _REDIS_WORDS[word]
    return found


def read_minitest(log: str) -> Words:
    """`Suite#test. = 0.01 s = .`: the last of `.`, `F`, `E` on the line is the word, wherever it stands after
    an equals sign; skips (`S`) are not seen. By hand, for the official pattern is cubic in the line's length.
    """
    found: Words = {}
    for line in map(str.strip, lines(log)):
        word = max(line.rfind(letter) for letter in ".FE")
        equals = line.rfind("=", 0, max(word, 0))
        stop = line.rfind(". ", 1, max(equals, 0))
        if stop > 0:
            found[line[:stop]] = PASSED if line[word] == "." else FAILED
    return found


_GOOGLE_WORD = re.compile(r"\[\s*+(OK|FAILED)\s*+\]\s")
_GOOGLE_TIME = re.compile(r"\s\(")


def read_googletest(log: str) -> Words:
    """`[ OK ] Suite.test (3 ms)`: the last word in brackets that has a parenthesis behind it, up to the last
    parenthesis."""
    found: Words = {}
    for line in map(str.strip, lines(log)):
        times = list(_GOOGLE_TIME.finditer(line)) if line.endswith(")") else []
        words = [word for word in _GOOGLE_WORD.finditer(line) if times and word.end() <= times[-1].start()]
        if words:
            test = line[words[-1].end() : times[-1].start()]
            found[test] = PASSED if words[-1][1] == "OK" else FAILED
    return found
