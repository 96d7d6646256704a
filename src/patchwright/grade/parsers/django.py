"""The reader of Django's test runner, whose results share their line with whatever the tests print."""

from __future__ import annotations

import re

from patchwright.grade.parsers.words import ERROR, FAILED, PASSED, SKIPPED, UnreadableLog, Words, lines

_PASSES = (" ... ok", " ... OK", " ...  OK")
_FAILURES = {"FAIL": FAILED, "ERROR": ERROR}

_NOISE_BEFORE = "Applying sites.0002_alter_domain_unique...test_no_migrations"
"""One test of django-7188 prints a migration's progress in front of its own name."""

_VERSION_TEST = "--version is equivalent to version"
"""A name that spans lines: its mention counts as passed."""

# A test's name, output that swallowed the end of the line, then `ok` alone on a line.
_OPENING = re.compile(r"^(.*?)\s\.\.\.\sTesting against Django installed in ", re.MULTILINE)
_CLOSING = re.compile(r" silenced\)\.\nok$", re.MULTILINE)
_INTERRUPTED = (
    re.compile(r"^(?>(.*?)\s\.\.\.\sInternal\ Server\ Error:\ /)(.*)/\nok$", re.MULTILINE),
    re.compile(r"^(.*?)\s\.\.\.\sSystem check identified no issues \(0 silenced\)\nok$", re.MULTILINE),
)


def read_django(log: str) -> Words:
    """`name ... ok|FAIL|ERROR|skipped`, `FAIL: name`, `ERROR: name`, and `ok` on a line of its own, which is
    the end of the last test that was begun."""
    found: Words = {}
    begun: str | None = None
    for line in map(str.strip, lines(log)):
        if _VERSION_TEST in line:
            found[_VERSION_TEST] = PASSED
        if " ... " in line:
            begun = line.split(" ... ")[0]
        line = _passed(line, found)
        if " ... skipped" in line:
            found[line.split(" ... skipped")[0]] = SKIPPED
        _failed(line, found)
        if line.startswith("ok") and begun is not None:
            found[begun] = PASSED
    found.update(dict.fromkeys(_silenced(log), PASSED))
    for pattern in _INTERRUPTED:
        found.update((match[1], PASSED) for match in pattern.finditer(log))
    return found


def _passed(line: str, found: Words) -> str:
    """Note a passed test; the line without the noise in front of it."""
    for ending in _PASSES:
        if line.endswith(ending):
            if line.startswith(_NOISE_BEFORE):
                line = line.split("...", 1)[-1].strip()
            found[line.rsplit(ending, 1)[0]] = PASSED
            break
    return line


def _failed(line: str, found: Words) -> None:
    for word, status in _FAILURES.items():
        if line.endswith(f" ... {word}"):
            found[line.split(f" ... {word}")[0]] = status
        if line.startswith(f"{word}:"):
            words = line.split()
            if len(words) < 2:
                raise UnreadableLog(f"a line with `{word}:` and no second word")
            found[words[1]] = status


def _silenced(log: str) -> list[str]:
    """Names whose line went on with the runner's banner, up to `silenced).` and `ok`."""
    names, at = [], 0
    while (opening := _OPENING.search(log, at)) and (closing := _CLOSING.search(log, opening.end())):
        names.append(opening[1])
        at = closing.end()
    return names
