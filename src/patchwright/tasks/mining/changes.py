"""What changed between two releases' sources: hunks, and clusters of hunks that belong together.

A cluster is left out of the newer release to get the state before one fix. Two hunks belong together when
they lie in the same function or class, or when one brings a name into being that the other uses.
Pure: texts in, texts out.
"""

from __future__ import annotations

import ast
import difflib
import keyword
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import pairwise

_WORD = re.compile(r"[A-Za-z_]\w*")
_VERSION = re.compile(r"^\s*(__)?version(_info)?(__)?\s*[:=]|^\s*__date__\s*=", re.IGNORECASE)
_DEFINES = re.compile(r"^\s*(?:async\s+)?(?:def|class)\s+(\w+)|^(\w+)\s*(?::[^=]+)?=[^=]")
_NEAR = 3


@dataclass(frozen=True)
class Hunk:
    """Lines `old[old_start:old_end]` of a file became lines `new[new_start:new_end]`.

    Example: `Hunk("m.py", 1, 2, 1, 2, ("x = 1\\n",), ("x = 2\\n",), ("m.py", "f"))`
    """

    file: str
    old_start: int
    old_end: int
    new_start: int
    new_end: int
    before: tuple[str, ...]
    after: tuple[str, ...]
    place: tuple[str, str]
    """File, and the top-level definition it is in; alone in its place when that is empty."""

    @property
    def size(self) -> int:
        """Lines taken and given."""
        return len(self.before) + len(self.after)

    @cached_property
    def defines(self) -> frozenset[str]:
        """Names that this hunk brings into being or takes away."""
        gone, come = (_defined(lines) for lines in (self.before, self.after))
        return gone ^ come

    @cached_property
    def words(self) -> frozenset[str]:
        """Names mentioned in lines given or taken."""
        found = _WORD.findall("".join((*self.before, *self.after)))
        return frozenset(word for word in found if not keyword.iskeyword(word))


Cluster = tuple[Hunk, ...]


def clusters(old: Mapping[str, str], new: Mapping[str, str]) -> list[Cluster]:
    """The changes of behaviour between two sets of files, smallest cluster first.

    Changes of comments, documentation and version numbers only are in none, and imports that came stay.
    """
    hunks = [hunk for file in sorted({*old, *new}) for hunk in _hunks(file, old.get(file), new.get(file))]
    imports = [hunk for hunk in hunks if _imports_only(hunk, old, new)]
    meant = [hunk for hunk in hunks if not _is_version(hunk) and _matters((hunk,), new)]
    groups = _grouped([hunk for hunk in meant if hunk not in imports])
    found = [_with_imports(group, imports) for group in groups if _matters(group, new)]
    return sorted(found, key=lambda group: sum(hunk.size for hunk in group))


def without(cluster: Cluster, new: Mapping[str, str]) -> dict[str, str | None]:
    """The files a cluster touches as they are in `new` with the cluster left out; None: there is no such
    file."""
    found: dict[str, str | None] = {}
    for file in dict.fromkeys(hunk.file for hunk in cluster):
        lines = new.get(file, "").splitlines(keepends=True)
        mine = sorted((hunk for hunk in cluster if hunk.file == file), key=lambda hunk: -hunk.new_start)
        for hunk in mine:
            lines[hunk.new_start : hunk.new_end] = hunk.before
        found[file] = "".join(lines) if lines else None
    return found


def file_diff(file: str, before: str | None, after: str | None) -> str:
    """A git diff of one file; None means that there is no such file."""
    if before == after:
        return ""
    head = [f"diff --git a/{file} b/{file}\n"]
    head += ["new file mode 100644\n"] if before is None else []
    head += ["deleted file mode 100644\n"] if after is None else []
    source = "/dev/null" if before is None else f"a/{file}"
    target = "/dev/null" if after is None else f"b/{file}"
    old, new = (before or "").splitlines(keepends=True), (after or "").splitlines(keepends=True)
    body = difflib.unified_diff(old, new, source, target)
    return "".join(head) + "".join(_ended(line) for line in body)


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


# --- hunks ------------------------------------------------------------------------------------


def _hunks(file: str, before: str | None, after: str | None) -> list[Hunk]:
    """The hunks of a file. One that reaches over several definitions is cut where they begin: the lines taken
    go with the definition they were of."""
    old, new = (before or "").splitlines(keepends=True), (after or "").splitlines(keepends=True)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    here, there = _places(after or ""), _places(before or "")
    found = []
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind != "equal":
            owner = _place(there, range(i, j))
            cuts = [k, *(start for start, _, _ in here if k < start < m), m]
            pieces = [(start, end, _place(here, range(start, end))) for start, end in pairwise(cuts)]
            mine = next((number for number, piece in enumerate(pieces) if piece[2] == owner), 0)
            for number, (start, end, where) in enumerate(pieces):
                old_start, old_end = (i, j) if number == mine else (i, i) if number < mine else (j, j)
                taken, given = tuple(old[old_start:old_end]), tuple(new[start:end])
                place = (file, where or (owner if number == mine else ""))
                found.append(Hunk(file, old_start, old_end, start, end, taken, given, place))
    return found


def _places(text: str) -> list[tuple[int, int, str]]:
    """First line, line after the last, and name of every top-level definition; methods on their own."""
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return []
    found = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found += [_span(inner, f"{node.name}.") for inner in node.body if _is_function(inner)]
        elif _is_function(node):
            found.append(_span(node, ""))
    return found


def _parsed(text: str) -> ast.Module:
    """As `ast.parse`; what Python warns of in a library's text is no concern of ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(text)


def _is_function(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def _span(node: ast.stmt, prefix: str) -> tuple[int, int, str]:
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
    return first - 1, node.end_lineno or node.lineno, f"{prefix}{node.name}"


def _place(places: Sequence[tuple[int, int, str]], lines: range) -> str:
    """The definition that the first of `lines` is in, or an empty text."""
    inside = [name for start, end, name in places if start <= lines[0] < end] if lines else []
    return inside[0] if inside else ""


def _defined(lines: Iterable[str]) -> frozenset[str]:
    found = (match for line in lines if (match := _DEFINES.match(line)))
    return frozenset(match[1] or match[2] for match in found)


def _is_version(hunk: Hunk) -> bool:
    return hunk.size <= 4 and any(_VERSION.match(line) for line in (*hunk.before, *hunk.after))


# --- clusters ---------------------------------------------------------------------------------


def _grouped(hunks: Sequence[Hunk]) -> list[Cluster]:
    """Union of hunks that belong together, each cluster in order of file and line."""
    leader = list(range(len(hunks)))

    def top(one: int) -> int:
        while leader[one] != one:
            one = leader[one]
        return one

    for index, hunk in enumerate(hunks):
        for other in range(index):
            if _belong(hunks[other], hunk):
                leader[top(index)] = top(other)
    groups: dict[int, list[Hunk]] = {}
    for index, hunk in enumerate(hunks):
        groups.setdefault(top(index), []).append(hunk)
    return [tuple(group) for group in groups.values()]


def _belong(one: Hunk, other: Hunk) -> bool:
    if one.place == other.place and one.place[1]:
        return True
    near = one.file == other.file and other.new_start - one.new_end < _NEAR
    if near and not one.place[1] and not other.place[1]:
        return True
    return bool(one.defines & other.words or other.defines & one.words)


def _imports_only(hunk: Hunk, old: Mapping[str, str], new: Mapping[str, str]) -> bool:
    """Whether nothing but imports came or went; both files are there."""
    if hunk.file not in old or hunk.file not in new:
        return False
    gone = _other_lines(old[hunk.file], range(hunk.old_start, hunk.old_end), hunk.before)
    come = _other_lines(new[hunk.file], range(hunk.new_start, hunk.new_end), hunk.after)
    return not gone and not come


def _other_lines(text: str, lines: range, texts: Sequence[str]) -> bool:
    """Whether some of these lines are neither blank nor part of an import."""
    imports = _import_lines(text)
    return any(line.strip() and number not in imports for number, line in zip(lines, texts, strict=True))


@lru_cache(maxsize=256)
def _import_lines(text: str) -> frozenset[int]:
    try:
        tree = _parsed(text)
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return frozenset(
        line for node in nodes for line in range(node.lineno - 1, node.end_lineno or node.lineno)
    )


def _with_imports(cluster: Cluster, imports: Sequence[Hunk]) -> Cluster:
    """The cluster, and the imports that went and without which its older lines do not run.

    What came with them stays beside them.
    """
    older: dict[str, set[str]] = {}
    for hunk in cluster:
        older.setdefault(hunk.file, set()).update(_WORD.findall("".join(hunk.before)))
    needed = []
    for hunk in imports:
        went = set(_WORD.findall("".join(hunk.before))) - set(_WORD.findall("".join(hunk.after)))
        if went & older.get(hunk.file, set()):
            needed.append(replace(hunk, before=hunk.before + hunk.after))
    return (*cluster, *needed)


def _matters(cluster: Cluster, new: Mapping[str, str]) -> bool:
    """Whether leaving it out changes what any file does."""
    left_out = without(cluster, new)
    return any(_meaning(text) != _meaning(new.get(file)) for file, text in left_out.items())


def _meaning(text: str | None) -> str:
    """The text's syntax without documentation; the text itself when it is no Python of this version."""
    try:
        tree = _parsed(text or "")
    except (SyntaxError, ValueError, RecursionError):
        return text or ""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _is_text(one)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    """A string on its own: documentation."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
