"""The repair of a bug as a git diff."""

from __future__ import annotations

import difflib

_UNENDED = "\\ No newline at end of file"


def file_diff(path: str, before: str, after: str) -> str:
    """A git diff from one text of a file to another, three lines of context; empty when they are equal.

    Example: `file_diff("mod.py", "a\\nb\\n", "a\\nc\\n")`
    """
    old, new = _lines(before), _lines(after)
    body = "".join(
        line if line.endswith("\n") else f"{line}\n{_UNENDED}\n"
        for line in difflib.unified_diff(old, new, f"a/{path}", f"b/{path}")
    )
    return f"diff --git a/{path} b/{path}\n{body}" if body else ""


def _lines(text: str) -> list[str]:
    """Lines as git has them: ended by a newline and by nothing else."""
    lines = [f"{line}\n" for line in text.split("\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def line_diff(path: str, before: str, line: int, after: str) -> str:
    """A git diff that replaces line `line` (from 1) of `before` by the line `after`, three lines of context.

    Example: `line_diff("mod.py", "a\\nb\\n", 2, "c")`
    """
    lines = before.split("\n")
    ended = lines[-1] == ""
    if ended:
        lines.pop()
    first, last = max(0, line - 4), min(len(lines), line + 3)
    body = [
        *(f" {text}" for text in lines[first : line - 1]),
        f"-{lines[line - 1]}",
        f"+{after}",
        *(f" {text}" for text in lines[line:last]),
    ]
    if not ended and last == len(lines):
        body = _mark_unended(body, line == len(lines))
    span = f"{first + 1},{last - first}"
    head = f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n@@ -{span} +{span} @@\n"
    return head + "\n".join(body) + "\n"


def _mark_unended(body: list[str], changed: bool) -> list[str]:
    """git wants a mark below a last line that lacks its newline: both versions of it when it changed."""
    return [*body[:-1], _UNENDED, body[-1], _UNENDED] if changed else [*body, _UNENDED]
