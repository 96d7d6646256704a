"""Readers of SWE-smith's logs: `pytest --verbose` (`t.py::a PASSED [ 1%]`) and what a few projects need."""

from __future__ import annotations

import re

from patchwright.grade.parsers.words import (
    ERROR,
    FAILED,
    PASSED,
    SKIPPED,
    STATUSES,
    Reader,
    Words,
    lines,
)

_ANY = "|".join(STATUSES)


def _reader(pattern: str) -> Reader:
    """Raw lines; the word need not end where it ends, so `PASSEDX` is `PASSED`."""
    regex = re.compile(pattern)

    def read(log: str) -> Words:
        matches = filter(None, map(regex.match, lines(log)))
        return {match["test"]: match["word"] for match in matches}

    return read


read_pytest = _reader(rf"(?P<test>\S+)\s+(?P<word>{_ANY})")
read_paramiko = _reader(rf"(?P<word>{_ANY})\s(?P<test>\S+)")
read_autograd = _reader(rf"\[gw\d\]\s(?P<word>{_ANY})\s(?P<test>\S+)")


def read_mypy(log: str) -> Words:
    """The last word of any line that mentions `PASSED`, else `FAILED`."""
    found: Words = {}
    for line in lines(log):
        word = next((word for word in (PASSED, FAILED) if word in line), None)
        if word:
            found[line.split()[-1]] = word
    return found


_SLUGIFY = re.compile(r"(?P<test>[a-zA-Z0-9_\-,\.\s\(\)']+)\s\.{3}\s(?P<word>ok|FAIL|ERROR)$")
_SLUGIFY_WORDS = {"ok": PASSED, "FAIL": FAILED, "ERROR": ERROR}


def read_python_slugify(log: str) -> Words:
    """unittest's lines, names of few letters."""
    matches = filter(None, map(_SLUGIFY.match, lines(log)))
    return {match["test"]: _SLUGIFY_WORDS[match["word"]] for match in matches}


def read_tornado(log: str) -> Words:
    """unittest's lines; a failure is named by the two words after `ERROR:` or `FAIL:`."""
    found: Words = {}
    for line in lines(log):
        if line.endswith("... ok"):
            found[line.split(" ... ")[0]] = PASSED
        elif " ... skipped " in line:
            found[line.split(" ... ")[0]] = SKIPPED
        elif line.startswith(("ERROR:", "FAIL:")):
            found[" ".join(line.split()[1:3])] = FAILED
    return found
