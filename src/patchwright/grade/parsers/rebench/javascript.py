"""SWE-rebench V2's readers of JavaScript logs: mocha, jest, vitest, ava, TAP."""

from __future__ import annotations

import re

from patchwright.grade.parsers.rebench.lines import (
    BLANKS,
    Rule,
    by_rules,
    closing,
    named,
    note,
    without_duration,
    without_ending,
)
from patchwright.grade.parsers.words import FAILED, PASSED, SKIPPED, Words, lines, nested

_TICK = Rule(name=named(r"✔\s+(?P<test>.*)", without_duration), word=PASSED, keep=True)
_DASH = Rule(name=named(r"-\s+(?P<test>.*)", without_duration), word=SKIPPED)

read_js = by_rules(
    _DASH,
    Rule(name=named(r"\d++\)\s++(?P<test>.*):$", without_duration), word=FAILED),
    Rule(name=named(r"\[W\]\s*\d+\)\s+(?P<test>.*)", without_duration), word=FAILED),
    _TICK,
)
"""Mocha, whose failures end with a colon: `1) name:`, or `[W] 1) name`."""

read_js_2 = by_rules(_DASH, Rule(name=named(r"\d+\)\s+(?P<test>.*)", without_duration), word=FAILED), _TICK)
"""Mocha: `✔ name`, `1) name`, `- name`."""

_TAP = re.compile(r"(?P<word>not ok|ok)\s++\d++\s++-\s++(?P<test>.*)")
_COMMENT = re.compile(BLANKS + "#")


def read_js_3(log: str) -> Words:
    """TAP with blocks: `ok 1 - suite {`, its tests, `}`. A directive after ` #` is cut off unread."""
    found: Words = {}
    suites: list[str] = []
    for line in map(str.strip, log.splitlines()):
        if line and not line.strip("}"):
            del suites[max(len(suites) - len(line), 0) :]
            continue
        opens = line.endswith("{")
        result = _TAP.match(line[:-1].rstrip() if opens else line)
        title = _COMMENT.split(result["test"], maxsplit=1)[0].strip() if result else ""
        test = without_duration(title)
        if result is None or not test:
            continue
        skipped = "# skip" in title.lower() or "# todo" in title.lower()
        word = SKIPPED if skipped else PASSED if result["word"] == "ok" else FAILED
        note(found, nested(" :: ", suites, test), word, keep=word == PASSED)
        if opens:
            suites.append(test)
    return found


_SYMBOLS = {
    **dict.fromkeys("✔✓", PASSED),
    **dict.fromkeys("✘✖×", FAILED),
    **dict.fromkeys("○◌◦⚪", SKIPPED),
}
_SKIP_MARKS = ("(skipped)", "[skip]", "[skipped]", "[pending]", "[todo]")


def read_js_4(log: str) -> Words:
    """A line's first character is the word; a tag before the name (`[file]:`) goes."""
    found: Words = {}
    for line in map(str.strip, log.splitlines()):
        word = _SYMBOLS.get(line[:1])
        if word:
            note(found, without_duration(_untagged(line[1:].strip())), word, keep=word == PASSED)
        elif any(mark in line.lower() for mark in _SKIP_MARKS):
            for mark in _SKIP_MARKS:
                line = line.replace(mark, "")
            note(found, without_duration(line), SKIPPED)
    return found


def _untagged(text: str) -> str:
    if text.startswith("[") and "]:" in text:
        text = text.split("]:", 1)[1].strip()
    return text[1:].strip() if text.startswith(":") else text


_MILLISECONDS = re.compile(r"\(\d+(?:ms)?\)")
_PARENTHESIS = re.compile(BLANKS + r"\(")


def _without_module(name: str) -> str:
    at = closing(name.strip(), _PARENTHESIS)
    return name.strip()[:at] if at >= 0 else name.strip()


def _without_milliseconds(name: str) -> str:
    at = name.rfind("(")
    return without_ending(name, "(", _MILLISECONDS).strip() if name[at - 1 : at].isspace() else name.strip()


read_npx = by_rules(
    Rule(name=named(r"\s*+✔\s+(?P<test>.+)", _without_milliseconds), word=PASSED),
    Rule(name=named(r"\s*+\d+\)\s+(?P<test>.+)", _without_module), word=FAILED),
    prepare=str.rstrip,
)
"""Mocha: `✔ name (3ms)`, `1) name (module)`."""

_FILE = re.compile(r"(?P<word>PASS|FAIL)\s(?P<test>.*)")
_FILE_TIME = re.compile(r"\([\d.]+\s*(?:ms|s)\)")


def read_react_pdf(log: str) -> Words:
    """Jest's files: `PASS path (1.2 s)`."""
    found: Words = {}
    for result in filter(None, map(_FILE.match, lines(log))):
        test = result["test"]
        at = test.rfind("(")
        timed = at > 0 and test[at - 1].isspace()
        test = without_ending(test, "(", _FILE_TIME) if timed else test
        note(found, test.rstrip(), PASSED if result["word"] == "PASS" else FAILED)
    return found
