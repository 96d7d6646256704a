"""Diffs that data sets do not give as diffs: the reverse of one, and R2E-Gym's parsed commits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["commit_diff", "is_test", "reverse"]

_HUNK = re.compile(r"@@ -(\d+(?:,\d+)?) \+(\d+(?:,\d+)?) @@(.*)")
_SWAP = {"+": "-", "-": "+"}
_MODES = {
    "new file mode ": "deleted file mode ",
    "deleted file mode ": "new file mode ",
    "old mode ": "new mode ",
    "new mode ": "old mode ",
    "rename from ": "rename to ",
    "rename to ": "rename from ",
}
_TURNED = {"--- a/": "+++ b/", "+++ b/": "--- a/"}


def reverse(diff: str) -> str:
    """The git diff that undoes a git diff of text files. Its hunks stay in place, so it applies to the
    result of the other: `reverse(reverse(d)) == d` for what git writes."""
    return "".join(_file(part) for part in re.split(r"(?m)^(?=diff --git )", diff))


def _file(part: str) -> str:
    if not part.startswith("diff --git "):
        return part
    heads, *hunks = re.split(r"(?m)^(?=@@ -)", part)
    return _heads(heads) + "".join(_hunk(hunk) for hunk in hunks)


def _heads(text: str) -> str:
    lines = text.splitlines(keepends=True)
    header = re.sub(r"^diff --git a/(.+) b/(.+)$", r"diff --git a/\2 b/\1", lines[0], count=1)
    rest = [_head(line) for line in lines[1:]]
    for first, second in (("new mode ", "old mode "), ("rename to ", "rename from "), ("+++ ", "--- ")):
        _order(rest, first, second)
    return header + "".join(rest)


def _head(line: str) -> str:
    if line.startswith("index "):
        return re.sub(r"^index (\w+)\.\.(\w+)", r"index \2..\1", line)
    if line.strip() in ("--- /dev/null", "+++ /dev/null"):
        return line.replace("---", "+++") if line.startswith("---") else line.replace("+++", "---")
    for old, new in (_TURNED | _MODES).items():
        if line.startswith(old):
            return new + line[len(old) :]
    return line


def _order(lines: list[str], first: str, second: str) -> None:
    """Put the line of the old side back before that of the new one."""
    found = [next((i for i, line in enumerate(lines) if line.startswith(p)), -1) for p in (first, second)]
    if -1 < found[0] < found[1]:
        lines[found[0]], lines[found[1]] = lines[found[1]], lines[found[0]]


def _hunk(text: str) -> str:
    """Sides swapped, and within a change what is removed before what is added, as git has it."""
    header, *body = text.splitlines(keepends=True)
    removed: list[str] = []
    added: list[str] = []
    lines = [_HUNK.sub(r"@@ -\2 +\1 @@\3", header, count=1)]
    target = lines
    for line in body:
        if line[:1] in _SWAP:
            target = removed if line[0] == "+" else added
            target.append(_SWAP[line[0]] + line[1:])
        elif line.startswith("\\"):
            target.append(line)  # it is about the line above
        else:
            lines += [*removed, *added, line]
            removed, added, target = [], [], lines
    return "".join([*lines, *removed, *added])


# --- R2E-Gym ----------------------------------------------------------------------------------

_MARKS = {"context": " ", "added": "+", "deleted": "-", "note": "\\ "}
_TEST_FOLDERS = {"tests", "Tests", "test", "Test"}


def commit_diff(commit: Mapping[str, Any], *, tests: bool) -> str:
    """The git diff of a parsed commit (`parsed_commit_content`): its test files, or all others."""
    files = [file for file in commit["file_diffs"] if is_test(file["header"]["file"]["path"]) == tests]
    return "".join(line + "\n" for file in files for line in _commit_file(file))


def is_test(path: str) -> bool:
    """Whether R2E-Gym takes a path for a test file."""
    folders = path.split("/")
    return path.endswith("_test.py") or folders[-1].startswith("test_") or bool(_TEST_FOLDERS & {*folders})


def _commit_file(file: Mapping[str, Any]) -> Iterator[str]:
    path = file["header"]["file"]["path"]
    yield f"diff --git a/{path} b/{path}"
    if file["header"].get("misc_line"):
        yield file["header"]["misc_line"]
    if index := file.get("index_line"):
        yield f"index {index['old_commit_hash']}..{index['new_commit_hash']} {index['mode']}".rstrip()
    if file.get("is_binary_file") and file.get("binary_line"):
        yield file["binary_line"]
    if file.get("minus_file") and file.get("plus_file"):
        yield f"--- {file['minus_file']['path']}"
        yield f"+++ {file['plus_file']['path']}"
    for hunk in file.get("hunks") or ():
        yield from _commit_hunk(hunk)


def _commit_hunk(hunk: Mapping[str, Any]) -> Iterator[str]:
    place, section = hunk["descriptor"], hunk["descriptor"].get("section")
    ranges = f"@@ -{_range(place['old_range'])} +{_range(place['new_range'])} @@"
    yield f"{ranges} {section}" if section else ranges
    for line in hunk["line_group"]["all_lines"]:
        yield _MARKS[line["type"]] + line["content"]


def _range(given: Mapping[str, Any]) -> str:
    length = given.get("length")
    return str(given["start"]) if length is None else f"{given['start']},{length}"
