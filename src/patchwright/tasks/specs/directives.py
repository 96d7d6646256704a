"""From a test patch to what the test command is told to run, and to the files that are put back first.

The rules are those of the official harnesses, oddities included: no name is quoted for the shell (the script
runs in a box), and some patterns are looked for in hunks too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchwright.errors import ConfigError

__all__ = ["changed", "directives", "kept", "restored"]

_HEADER = re.compile(r"diff --git a/.* b/(.*)")
_CASE = re.compile(r"\[case ([^\]]+)\]")
_OLD = re.compile(r"--- a/(.*)")
_FILE = re.compile(r"diff --git a/(?P<old>.+) b/(?P<new>.+)")
_NOT_TESTS = (
    ".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml",
)  # fmt: skip
"""Endings of files that a test patch brings along but that are no tests; `csv` has no dot officially."""


def directives(rule: str, test_patch: str) -> list[str]:
    """What follows the test command under a rule.

    `files`: the test files. `modules`: django's dotted names below `tests/`. `cases`: mypy's `-k` expression
    of case names. `kept`: the test files that the patch does not remove. `none`: nothing. Raises ConfigError
    for any other rule.
    """
    named = [path for path in _HEADER.findall(test_patch) if not path.endswith(_NOT_TESTS)]
    if rule == "files":
        return named
    if rule == "modules":
        return [path.removesuffix(".py").removeprefix("tests/").replace("/", ".") for path in named]
    if rule == "cases":
        return ['"' + " or ".join(_CASE.findall(test_patch)) + '"']
    if rule == "kept":
        return [path for path in kept(test_patch) if not path.endswith(_NOT_TESTS)]
    if rule == "none":
        return []
    raise ConfigError(f"no rule {rule!r} says what to test; there are files, modules, cases, kept and none")


def restored(harness: str, test_patch: str) -> list[str]:
    """Files of the test patch that exist at the base commit: those taken back to it before it is applied."""
    if harness == "swegym":
        return _OLD.findall(test_patch)
    return [old for old, _ in changed(test_patch) if old]


def kept(test_patch: str) -> list[str]:
    """Files that exist once the test patch is in."""
    return [new for _, new in changed(test_patch) if new]


def changed(patch: str) -> list[tuple[str, str]]:
    """Old and new name of every file of a git diff; empty where the file is made or removed.

    Lines of hunks are never taken for headers, whatever they hold.
    """
    return [pair for pair in _files(patch) if any(pair)]


def _files(patch: str) -> Iterator[tuple[str, str]]:
    old = new = ""
    inside = False
    for line in _headers(patch):
        if line.startswith("diff --git "):
            if inside:
                yield old, new
            found = _FILE.match(line)  # none: git has quoted the names, and the official rules leave it out
            inside, (old, new) = True, (found["old"], found["new"]) if found else ("", "")
        elif line.startswith("new file mode "):
            old = ""
        elif line.startswith("deleted file mode "):
            new = ""
        elif line.startswith("--- ") and not inside:
            inside, old = True, _name(line)
        elif line.startswith("+++ b/") or line == "+++ /dev/null":
            new = _name(line)
    if inside:
        yield old, new


def _name(line: str) -> str:
    name = line[4:].partition("\t")[0]
    return "" if name == "/dev/null" else name[2:]


_HUNK = re.compile(r"^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@")


def _headers(patch: str) -> Iterator[str]:
    """The lines between hunks, found by counting the lines a hunk says it has."""
    before = after = 0
    for line in patch.split("\n"):
        if before > 0 or after > 0:
            before -= not line.startswith(("+", "\\"))
            after -= not line.startswith(("-", "\\"))
        elif hunk := _HUNK.match(line):
            before, after = (int(count) if count else 1 for count in hunk.groups())
        else:
            yield line.removesuffix("\r")
