"""Readers of logs that name failures only (graded `fail_only`: a test that is not named has passed), and of
Quarto's, where a test without a word has failed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from patchwright.grade.parsers.words import FAILED, PASSED, Reader, Words, lines, without_ansi


def _one_line(name: str) -> str:
    return " ".join(name.split())


def _failures(*patterns: str, name: Callable[[str], str] = str) -> Reader:
    """Every match of every pattern is a failure, named by the group called `test`."""
    compiled = [re.compile(pattern, re.MULTILINE) for pattern in patterns]

    def read(log: str) -> Words:
        return {name(match["test"]): FAILED for pattern in compiled for match in pattern.finditer(log)}

    return read


read_eslint = _failures(r"\s{2}\d+\)(?P<test>[\s\S]*?)\s+(?:.*)Error", name=_one_line)
"""mocha's `min` reporter: from the failure's number to the line with the word Error."""

read_bpmn_js = _failures(
    r"2KPhantomJS\s[\d.]+\s\(Linux\s[\d.]+\)\s(?P<test>.*)FAILED\n",
    r"2KPhantomJS\s[\d.]+\s\(Linux\sx86_64\)\s(?P<test>.*)FAILED\n",
    r"Chrome\sHeadless\s.*\s\(Linux\sx86_64\)\s(?P<test>.*)FAILED\n",
    r"HeadlessChrome\s[\d.]+\s\(Linux\s[\d.]+\)\s(?P<test>.*)FAILED\n",
)
"""Karma's lines in two browsers and two spellings each; names keep their last blank."""

read_openlayers = _failures(
    r"Chrome\sHeadless\s[\d.]+\s\(Linux\s[\d._\S]+\)\s(?P<test>.*)\sFAILED\n",
    r"Chrome\s[\d.]+\s\(Linux\s[\d._\S]+\)\s(?P<test>.*)FAILED\n",
    r"^\s{2}\d+\)(?P<test>[\s\S]*?)Error:",
    r"^case\s(?P<test>.*):\smismatch",
    name=_one_line,
)
"""Karma, mocha and the rendering tests' own lines."""

_chart_js = _failures(r"Chrome\s[\d.]+[^\S\r\n]\(.+?\)[^\S\r\n](?P<test>.*)FAILED$")


def read_chart_js(log: str) -> Words:
    """Karma's lines, colours taken off; names keep their last blank."""
    return _chart_js(without_ansi(log))


def read_marked(log: str) -> Words:
    """Jasmine: `1) name`."""
    matches = (re.match(r"\d+\)\s(.*)", line) for line in lines(log))
    return {match[1].strip(): FAILED for match in matches if match}


_P5_FAILURE = re.compile(r"^[^\S\n]*\d+\)(.{0,1000}?):", re.MULTILINE | re.DOTALL)


def read_p5js(log: str) -> Words:
    """Mocha: a number, the suite, the test, each line deeper than the one before, up to a colon; what the
    page wrote to the console (JSON and markup) is cut out first."""
    text = _without_markup(_without_json(without_ansi(log)))
    matches = (match[1].split("\n") for match in _P5_FAILURE.finditer(text))
    return {":".join(map(str.strip, parts)): FAILED for parts in matches if _deepens(parts)}


def _deepens(parts: list[str]) -> bool:
    depths = [0, *(len(part) - len(part.lstrip()) for part in parts)]
    return all(before < after for before, after in itertools.pairwise(depths))


_BRACKETS = {"{": "}", "[": "]"}


def _without_json(log: str) -> str:
    """Drop lines from one that ends with `{` or `[` to one that is nothing but its close, and lines that are
    one object or list."""
    kept: list[str] = []
    inside: set[str] = set()
    for line in lines(log):
        text = line.rstrip()
        if text[-1:] in _BRACKETS:
            inside.add(_BRACKETS[text[-1]])
        elif text in inside:
            inside.remove(text)
        elif not inside and _BRACKETS.get(text[:1], " ") != text[-1:]:
            kept.append(line)
    return "\n".join(kept)


_ELEMENT = re.compile(r"<(\w+)>[\s\S]*?</\1>")


def _without_markup(log: str) -> str:
    """Cut out elements from the left; the opening tags of elements within one are put back in its place, so
    that their own closing tags find them."""
    while match := _ELEMENT.search(log):
        tag = f"<{match[1]}>"
        inner = max(match[0].count(tag) - 1, 0)
        log = log[: match.start()] + tag * inner + log[match.end() :]
    return log


_QUARTO_TMP = (re.compile(r"/tmp/(\w+)\.qmd"), re.compile(r"/tmp/(\w+)/"))
_QUARTO_WORDS = {"32mok": PASSED, "31mFAILED": FAILED}


def read_quarto(log: str) -> Words:
    """Deno's coloured lines of `[smoke]` and `[unit]` tests, up to the errors; temporary names are numbered
    in order of appearance."""
    found: Words = {}
    numbers: dict[str, int] = {}
    for line in lines(log):
        if "ERRORS" in line or "failures:" in line:
            break
        if "[smoke]" not in line and "[unit]" not in line:
            continue
        line = _numbered(line, numbers)
        if _quarto_noise(line):
            continue
        test = line.split("...")[0].strip()
        word = next((status for mark, status in _QUARTO_WORDS.items() if mark in line), None)
        if word:
            found[test] = word
        else:
            found.setdefault(test, FAILED)
    return found


def _numbered(line: str, numbers: dict[str, int]) -> str:
    for pattern in _QUARTO_TMP:
        if match := pattern.search(line):
            number = numbers.setdefault(match[0], len(numbers))
            line = pattern.sub(f"/tmp/{number}", line)
    return line


def _quarto_noise(line: str) -> bool:
    counts = all(word in line for word in ("passed", "failed", "steps"))
    return line.startswith("test result:") or counts or "34mINFO" in line
