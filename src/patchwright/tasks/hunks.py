"""A patch taken apart: what it changes, piece by piece, and the patch with one piece missing or turned.

A piece is a run of `-` and `+` lines. Only text matters here, so that a patch in any language can be taken
apart. `trust` asks whether tests notice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePosixPath

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)$")
_PROSE = frozenset({".md", ".rst", ".txt", ".cfg", ".toml", ".ini", ".yml", ".yaml", ".json", ".lock"})
_REMARK = re.compile(r"^\s*(#|//|/\*|\*|$)")
_HASHED = frozenset({".py", ".pyi", ".rb", ".sh", ".pl", ".r"})
_TEXTS = r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
_HASH = re.compile(rf"{_TEXTS}|#.*")
_SLASHES = re.compile(rf"{_TEXTS}|//.*|/\*.*?\*/")
"""What of a line is no code: texts and remarks."""
_LONG_TEXT = re.compile(r'"{3}|\'{3}')
_TURNS: tuple[tuple[str, str], ...] = (
    (r"==", "!="),
    (r"!=", "=="),
    (r"<=", ">"),
    (r">=", "<"),
    (r"(?<![-=<>])<(?![<=])", ">="),
    (r"(?<![-=<>])>(?![>=])", "<="),
    (r"\bis not\b", "is"),
    (r"\bis\b(?! not)", "is not"),
    (r"\bnot in\b", "in"),
    (r"\bnot ", ""),
    (r"(?<![\w.])!(?!=)", ""),
    (r"\band\b", "or"),
    (r"\bor\b", "and"),
    (r"&&", "||"),
    (r"\|\|", "&&"),
    (r"\bTrue\b", "False"),
    (r"\bFalse\b", "True"),
    (r"\btrue\b", "false"),
    (r"\bfalse\b", "true"),
    (r" \+ ", " - "),
    (r" - ", " + "),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r"\breturn (?=\S)(?!None\b)", "return not "),
    (r"\bif (?=\S)(?!not\b)", "if not "),
    (r"(?<![\w.])0(?![\w.])", "1"),
    (r"(?<![\w.])1(?![\w.])", "2"),
)
"""What in a line of the solution is turned into what: the first place of each that applies."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A patch that is no longer the solution. Example: `Variant("piece 2 of 3 (core.py) dropped", "...")`"""

    what: str
    patch: str


@dataclass(frozen=True, slots=True)
class _Hunk:
    start: int
    tail: str
    body: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _File:
    head: tuple[str, ...]
    path: str
    hunks: tuple[_Hunk, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """Lines `first` to `last` (exclusive) of a hunk's body."""

    file: int
    hunk: int
    first: int
    last: int


def variants(patch: str) -> list[Variant]:
    """The patch with each piece dropped in turn (where there is more than one), and with one word of a new
    line turned into its opposite, everywhere in turn.

    Pieces that change only comments, prose or settings are left alone.
    """
    files = _parse(patch)
    pieces = list(_pieces(files))
    found = []
    for number, piece in enumerate(pieces, 1):
        body = files[piece.file].hunks[piece.hunk].body
        path = PurePosixPath(files[piece.file].path)
        name = f"piece {number} of {len(pieces)} ({path})"
        if len(pieces) > 1:
            found.append(Variant(f"{name} dropped", _write(files, piece, _dropped(body, piece))))
        for line, turned in _turned(body, piece, _HASH if path.suffix in _HASHED else _SLASHES):
            found.append(Variant(f"{name} turned: `{line}`", _write(files, piece, turned)))
    return found


def _parse(patch: str) -> list[_File]:
    sections = re.split(r"(?m)^(?=diff --git )", patch)
    return [_file(section.split("\n")) for section in sections if section.startswith("diff --git ")]


def _file(lines: Sequence[str]) -> _File:
    starts = [i for i, line in enumerate(lines) if _HUNK.match(line)]
    lines = lines[:-1] if lines[-1] == "" else lines
    head = tuple(lines[: starts[0]] if starts else lines)
    named = [line[4:].partition("\t")[0] for line in head if line.startswith(("--- ", "+++ "))]
    path = next((name[2:] for name in reversed(named) if name != "/dev/null"), "")
    hunks = []
    for first, last in pairwise([*starts, len(lines)]):
        match = _HUNK.match(lines[first])
        assert match is not None
        body = tuple(line for line in lines[first + 1 : last] if line[:1] in (" ", "-", "+", "\\"))
        hunks.append(_Hunk(int(match[1]), match[5], body))
    return _File(head, path, tuple(hunks))


def _pieces(files: Sequence[_File]) -> Iterator[_Piece]:
    for f, file in enumerate(files):
        if PurePosixPath(file.path).suffix in _PROSE:
            continue
        for h, hunk in enumerate(file.hunks):
            for first, last in _runs(hunk.body):
                if any(not _REMARK.match(line[1:]) for line in hunk.body[first:last] if line[0] in "+-"):
                    yield _Piece(f, h, first, last)


def _runs(body: Sequence[str]) -> Iterator[tuple[int, int]]:
    first = None
    for index, line in enumerate([*body, " "]):
        if line.startswith(" "):
            if first is not None:
                yield first, index
            first = None
        elif first is None:
            first = index


def _dropped(body: Sequence[str], piece: _Piece) -> list[str]:
    """The piece as it was before: its `-` lines stay as context, its `+` lines are not there."""
    kept = []
    run = body[piece.first : piece.last]
    for index, line in enumerate(run):
        if line.startswith("-"):
            kept.append(" " + line[1:])
        elif line.startswith("\\") and index and run[index - 1].startswith("-"):
            kept.append(line)
    return [*body[: piece.first], *kept, *body[piece.last :]]


def _turned(body: Sequence[str], piece: _Piece, prose: re.Pattern[str]) -> Iterator[tuple[str, list[str]]]:
    """The new line, and the body with it, for everything that can be turned in the code of its new lines."""
    for index in range(piece.first, piece.last):
        line = body[index]
        if line.startswith("+") and not _REMARK.match(line[1:]) and not _inside_text(body, index):
            for other in _others(line[1:], prose):
                yield other.strip(), [*body[:index], f"+{other}", *body[index + 1 :]]


def _inside_text(body: Sequence[str], index: int) -> bool:
    """Whether a line begins, ends or is inside a text of several lines, as far as the hunk shows."""
    before = sum(len(_LONG_TEXT.findall(line)) for line in body[:index] if line[0] in " +")
    return before % 2 == 1 or _LONG_TEXT.search(body[index]) is not None


def _others(line: str, prose: re.Pattern[str]) -> Iterator[str]:
    hidden = [match.span() for match in prose.finditer(line)]
    for pattern, new in _TURNS:
        for match in re.finditer(pattern, line):
            if not any(start <= match.start() < end for start, end in hidden):
                yield line[: match.start()] + new + line[match.end() :]
                break


def _write(files: Sequence[_File], piece: _Piece, body: Sequence[str]) -> str:
    """The patch with the body of the piece's hunk replaced; what changes nothing any more is left out."""
    out: list[str] = []
    for f, file in enumerate(files):
        hunks = list(file.hunks)
        if f == piece.file:
            old = hunks[piece.hunk]
            hunks[piece.hunk] = _Hunk(old.start, old.tail, tuple(body))
            hunks = [hunk for hunk in hunks if any(line[0] in "+-" for line in hunk.body)]
        if hunks or not file.hunks:
            out += [*file.head, *_lines(hunks)]
    return "\n".join(out) + "\n" if out else ""


def _lines(hunks: Sequence[_Hunk]) -> list[str]:
    out, shift = [], 0
    for hunk in hunks:
        old = sum(line[0] in " -" for line in hunk.body)
        new = sum(line[0] in " +" for line in hunk.body)
        start = hunk.start + shift + (1 if old == 0 else 0) - (1 if new == 0 else 0)
        out += [f"@@ -{hunk.start},{old} +{start},{new} @@{hunk.tail}", *hunk.body]
        shift += new - old
    return out
