"""Text of models and boxes made safe to print: a reply must not be able to drive the reader's terminal."""

from __future__ import annotations

import unicodedata

from rich.text import Text

__all__ = ["cut", "diff", "legible"]

_HARMLESS = "\n\t"
_UNSAFE = {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
"""Unicode categories that draw nothing and may act: control, format (bidirectional), surrogate, private."""


def legible(text: str) -> str:
    """The text with control characters, escape sequences and unprintable code points spelled out."""
    return "".join(_shown(char) for char in text)


def _shown(char: str) -> str:
    if char in _HARMLESS or unicodedata.category(char) not in _UNSAFE:
        return char
    return char.encode("unicode_escape").decode("ascii")


def cut(text: str, limit: int) -> str:
    """Head and tail of a long text, `limit` characters in all, saying how much is left out."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def diff(patch: str) -> Text:
    """A unified diff in colours."""
    text = Text()
    for line in legible(patch).splitlines(keepends=True):
        text.append(line, _style(line))
    return text


def _style(line: str) -> str:
    if line.startswith(("diff ", "index ", "--- ", "+++ ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
