"""Readers of logs that name failures only (graded `fail_only`: a test that is not named has passed), and of
Quarto's, where a test without a word has failed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from patchwright.grade.parsers.words import FAILED, PASSED, Ahead, Reader, Words, lines, tails, without_ansi


def _one_line(name: str) -> str:
    return " ".join(name.split())


def _karma(*heads: str) -> Reader:
    """Lines that end with FAILED; the test stands behind the head."""
    compiled = [re.compile(head) for head in heads]
    return lambda log: dict.fromkeys((test for head in compiled for test in tails(log, head, FAILED)), FAILED)


_MIN_START = re.compile(r"\s{2}\d++\)")


def read_eslint(log: str) -> Words:
    """mocha's `min` reporter: from the failure's number to blanks with the word Error behind them."""
    found: Words = {}
    start = _MIN_START.search(log)
    while start and (ends := _error_line(log, start.end())):
        found[_one_line(log[start.end() : ends[0]])] = FAILED
        start = _MIN_START.search(log, ends[1])
    return found


def _error_line(log: str, begin: int) -> tuple[int, int] | None:
    """Where the first blanks from `begin` on are that have Error behind them on the line they end on, and
    where the last Error of that line ends."""
    at = begin
    while (error := log.find("Error", at)) >= 0:
        stop = log.find("\n", error)
        stop = len(log) if stop < 0 else stop
        last = log.rfind("Error", error, stop)
        line = log.rfind("\n", begin, error)
        if line >= 0:
            return begin + len(log[begin:line].rstrip()), last + 5
        if blank := _BLANK.search(log, begin, last):
            return blank.start(), last + 5
        at = stop
    return None


_BLANK = re.compile(r"\s")

_BPMN = _karma(
    r"2KPhantomJS\s[\d.]+\s\(Linux\s[\d.]+\)\s",
    r"2KPhantomJS\s[\d.]+\s\(Linux\sx86_64\)\s",
)
_BPMN_CHROME = re.compile(r"Chrome\sHeadless\s")
_BPMN_LINUX = re.compile(r"\s\(Linux\sx86_64\)(?=\s)")
_BPMN_HEADLESS = _karma(r"HeadlessChrome\s[\d.]+\s\(Linux\s[\d.]+\)\s")


def read_bpmn_js(log: str) -> Words:
    """Karma's lines in two browsers and two spellings each; names keep their last blank."""
    chrome = dict.fromkeys(filter(None, map(_bpmn_chrome, log.split("\n")[:-1])), FAILED)
    return {**_BPMN(log), **chrome, **_BPMN_HEADLESS(log)}


def _bpmn_chrome(line: str) -> str | None:
    begin = _BPMN_CHROME.search(line) if line.endswith(FAILED) else None
    heads = list(_BPMN_LINUX.finditer(line, begin.end())) if begin else []
    return line[heads[-1].end() + 1 : -len(FAILED)] if heads else None


_OL_HEADLESS = _karma(r"Chrome\sHeadless\s[\d.]+\s\(Linux\s\S+\)\s")
_OL_CHROME = _karma(r"Chrome\s[\d.]+\s\(Linux\s\S+\)\s")
_OL_NUMBER = re.compile(r"^\s{2}\d++\)", re.MULTILINE)
_OL_CASE = re.compile(r"^case\s(.*):\smismatch", re.MULTILINE)


def read_openlayers(log: str) -> Words:
    """Karma, mocha and the rendering tests' own lines."""
    headless = (name for name in _OL_HEADLESS(log) if name[-1:].isspace())
    names = [*headless, *_OL_CHROME(log), *_mocha(log), *_OL_CASE.findall(log)]
    return {_one_line(name): FAILED for name in names}


def _mocha(log: str) -> Iterator[str]:
    """From a failure's number to the next `Error:`."""
    start = _OL_NUMBER.search(log)
    while start and (end := log.find("Error:", start.end())) >= 0:
        yield log[start.end() : end]
        start = _OL_NUMBER.search(log, end + 6)


_CHART_HEAD = re.compile(r"Chrome\s[\d.]+[^\S\r\n]\(")
_CHART_CLOSE = re.compile(r"\)[^\S\r\n]")


def read_chart_js(log: str) -> Words:
    """Karma's lines, colours taken off; names keep their last blank."""
    log = without_ansi(log) + "\n"
    found: Words = {}
    ahead = Ahead(log)
    head = _CHART_HEAD.search(log)
    while head:
        end = ahead.find("\n", head.end())
        fits = log.endswith(FAILED, head.end(), end)
        close = _CHART_CLOSE.search(log, head.end() + 1, end) if fits else None
        if close:
            found[log[close.end() : end - len(FAILED)]] = FAILED
        head = _CHART_HEAD.search(log, end if fits else head.start() + 1)
    return found


def read_marked(log: str) -> Words:
    """Jasmine: `1) name`."""
    matches = (re.match(r"\d+\)\s(.*)", line) for line in lines(log))
    return {match[1].strip(): FAILED for match in matches if match}


_P5_NUMBER = re.compile(r"^[^\S\n]*\d+\)", re.MULTILINE)
_P5_LENGTH = 1000
"""Characters of a failure's titles."""


def read_p5js(log: str) -> Words:
    """Mocha: a number, the suite, the test, each line deeper than the one before, up to a colon; what the
    page wrote to the console (JSON and markup) is cut out first."""
    text = _without_markup(_without_json(without_ansi(log)))
    titles = (title.split("\n") for title in _p5_titles(text))
    return {":".join(map(str.strip, parts)): FAILED for parts in titles if _deepens(parts)}


def _p5_titles(text: str) -> Iterator[str]:
    ahead, done = Ahead(text), 0
    for number in _P5_NUMBER.finditer(text):
        colon = ahead.find(":", number.end())
        if number.start() >= done and 0 <= colon <= number.end() + _P5_LENGTH:
            done = colon + 1
            yield text[number.end() : colon]


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


_OPENING = re.compile(r"<(\w++)>")
_CLOSING = re.compile(r"</(\w++)>")


def _without_markup(log: str) -> str:
    """Cut out elements from the left, each with the elements of its own name within it."""
    closed = {tag[1]: tag.start() for tag in _CLOSING.finditer(log)}
    kept, done = [], 0
    for opening in _OPENING.finditer(log):
        if done <= opening.start() < closed.get(opening[1], -1):
            kept.append(log[done : opening.start()])
            done, still_open = _element_end(log, opening)
            kept.append(opening[0] * still_open)
    return "".join([*kept, log[done:]])


def _element_end(log: str, opening: re.Match[str]) -> tuple[int, int]:
    """Where the element ends, and how many of the tags that open it (and others within) were never closed."""
    closing, at, depth = f"</{opening[1]}>", opening.end(), 1
    while depth and (end := log.find(closing, at)) >= 0:
        depth += log.count(opening[0], at, end) - 1
        at = end + len(closing)
    return at, depth


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
