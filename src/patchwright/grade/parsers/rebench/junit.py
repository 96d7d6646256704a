"""SWE-rebench V2's readers of JUnit's XML, whole or torn, in the midst of a log."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator

from patchwright.grade.parsers.rebench.lines import note
from patchwright.grade.parsers.words import ERROR, FAILED, PASSED, SKIPPED, Ahead, Words

_TAGS = {"failure": FAILED, "error": ERROR, "skipped": SKIPPED}


def _root(text: str) -> ET.Element | None:
    """The document's root; None when it is no XML (or XML that grows when read: the library refuses it)."""
    try:
        return ET.fromstring(text)
    except (ET.ParseError, ValueError, LookupError, RecursionError):
        return None


def _word(case: ET.Element, order: Iterable[str]) -> str:
    return next((_TAGS[tag] for tag in order if case.find(tag) is not None), PASSED)


def read_reports(log: str) -> Words:
    """Every `<?xml ... </testsuites>`: `class::name`. A later document wins."""
    found: Words = {}
    ahead, at = Ahead(log), 0
    while (start := ahead.find("<?xml", at)) >= 0 and (end := ahead.find("</testsuites>", start)) >= 0:
        at = end + len("</testsuites>")
        found.update(_report(log[start:at]))
    return found


def _report(text: str) -> Words:
    root = _root(text)
    cases = root.iterfind(".//testcase") if root is not None else ()
    order = ("failure", "skipped", "error")
    return {f"{case.get('classname')}::{case.get('name')}": _word(case, order) for case in cases}


def read_gradlew_v1(log: str) -> Words:
    """Documents from a line with `<?xml` to one with `</testsuite>`: `name (class)`."""
    found: Words = {}
    for root in (root for block in _blocks(log) if (root := _root(block)) is not None):
        for case in root.iterfind(".//testcase"):
            name, place = case.get("name", ""), case.get("classname", "")
            test = f"{name} ({place})" if place and name else name
            note(found, test, _word(case, ("skipped", "failure", "error")))
    return found


def _blocks(log: str) -> Iterator[str]:
    block: list[str] = []
    for line in log.split("\n"):
        text = line.strip()
        if text.startswith("<?xml"):
            block = [line]
        elif block:
            block.append(line)
            if text.startswith("</testsuite>"):
                yield "\n".join(block)
                block = []


def read_r_junit(log: str) -> Words:
    """testthat's first document: `class::name`."""
    start = log.find("<?xml")
    if start < 0:
        return {}
    end = log.find("</testsuites>", start)
    root = _root(log[start : end + len("</testsuites>")] if end >= 0 else log[start:])
    found: Words = {}
    for suite in root.iterfind(".//testsuite") if root is not None else ():
        for case in suite.iterfind("testcase"):
            place, name = case.get("classname", ""), case.get("name", "")
            note(found, f"{place}::{name}" if place else name, _word(case, _TAGS))
    return found


_CASE = re.compile(r"<testcase\b")
_ATTRIBUTE = re.compile(r'(?<!\w)(\w++)="([^"]*)"')
_WINDOW = 4096
"""Characters that are taken for a test's own where its end is missing."""


def read_junit(log: str) -> Words:
    """`<testcase>` elements anywhere, be the rest XML or not: `class name`."""
    found: Words = {}
    ahead, at = Ahead(log), 0
    while (case := _CASE.search(log, at)) and (opened := ahead.find(">", case.end())) >= 0:
        at = opened + 1
        text = log[case.end() : opened]
        attributes = dict(_ATTRIBUTE.findall(text))
        if not attributes.get("name"):
            continue
        end = at
        if not text.strip().endswith("/"):
            close = ahead.find("</testcase>", at)
            end = close if close >= 0 else min(at + _WINDOW, len(log))
        word = next((word for tag, word in _TAGS.items() if ahead.within(f"<{tag}", at, end)), PASSED)
        place = attributes.get("classname")
        note(found, f"{place} {attributes['name']}".strip() if place else attributes["name"], word)
        at = end + len("</testcase>") if log.startswith("</testcase>", end) else at
    return found
