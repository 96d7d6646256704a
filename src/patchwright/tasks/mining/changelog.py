"""What a release says of itself: the entry of its version, and the part of it that is about one change.

Pure. The text is the library's, written by its authors: it may say anything, so it is cut, made printable,
and lines that are lines of the fix are left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

_VERSIONED = re.compile(r"(?<![\d.])v?(\d+(?:\.\d+)+(?:\.?(?:post|rc|a|b|dev)\d+)?)(?![\d.]*\d)")
_HEADING = re.compile(r"^\s{0,3}(#{1,6}\s|[-*=~^+]{3,}\s*$)")
_ITEM = re.compile(r"^\s{0,6}(?:[-*+•]|\d+[.)]|\.\. \w+::)\s+")
_WORD = re.compile(r"[A-Za-z_]\w{2,}")
_MAX_HEADING = 80
_MAX_TEXT = 1500
_COMMON = frozenset(
    """
    the and for with from into when that this not are was now all can has have its but fix fixed fixes
    bug bugs add added adds new use used using remove removed changed change support supports test tests
    python version release type types string value values self none true false return returns def class
    import name data list dict int str function method argument arguments error errors instead also only
    will
    """.split()  # noqa: SIM905
)


def entry(changelogs: Mapping[str, str], version: str) -> str:
    """The lines that follow the heading of `version`, up to the next version's; empty where there is none."""
    for _, text in sorted(changelogs.items(), key=lambda item: item[0].count("/")):
        lines = text.splitlines()
        heads = [(number, named) for number in range(len(lines)) if (named := _heading(lines, number))]
        for place, (number, named) in enumerate(heads):
            if named == version:
                end = heads[place + 1][0] if place + 1 < len(heads) else len(lines)
                return "\n".join(line for line in lines[number + 1 : end] if not _HEADING.match(line)).strip()
    return ""


def _heading(lines: Sequence[str], number: int) -> str:
    """The version a line is the heading of, or an empty text."""
    line = lines[number]
    if len(line) > _MAX_HEADING or line.startswith((" ", "\t", "- ", "* ")) or not line.strip():
        return ""
    underlined = number + 1 < len(lines) and bool(re.match(r"^[-=~^*+]{3,}\s*$", lines[number + 1]))
    found = _VERSIONED.search(line)
    plain = re.match(r"^(version|release|v)?\s*[\[(]?v?\d+(\.\d+)+", line.lstrip("# "), re.IGNORECASE)
    return found[1] if found and (underlined or line.startswith("#") or plain) else ""


def about(text: str, words: Collection[str], fix: Collection[str]) -> str:
    """The items of a changelog entry that share rare `words` with one change, most telling first.

    All of a short entry is about its only change. Lines that are among the lines of the `fix` are left out.
    """
    wanted = {part for word in words for part in _parts(word)} - _COMMON
    scored = [(len(wanted & {p for w in _WORD.findall(one) for p in _parts(w)}), one) for one in _items(text)]
    best = max((score for score, _ in scored), default=0)
    chosen = [one for score, one in scored if score and score * 2 >= best]
    if not chosen and len(scored) == 1:
        chosen = [scored[0][1]]
    return _clean("\n".join(chosen), fix)


def _parts(word: str) -> set[str]:
    """A name, and the words it is made of."""
    pieces = re.findall(r"[A-Z]?[a-z]{3,}|[A-Z]{3,}", word)
    return {word.lower(), *(piece.lower() for piece in pieces)}


def _items(text: str) -> list[str]:
    """The items of a list, each with the lines that belong to it; paragraphs where there is no list."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if _ITEM.match(line) or not found or (not line.strip() and found[-1]):
            found.append([])
        found[-1].append(line)
    items = ["\n".join(lines).strip() for lines in found]
    return [item for item in items if _WORD.search(item)]


def _clean(text: str, fix: Collection[str]) -> str:
    lines = {line.strip() for line in fix if len(line.strip()) > 12}
    kept = [line for line in text.splitlines() if line.strip(" `>") not in lines]
    shown = "".join(c for c in "\n".join(kept) if c.isprintable() or c == "\n")
    return shown[:_MAX_TEXT].strip()
