"""A module's text as bytes, and edits of it: everything around an edit stays as its author wrote it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Edit = tuple[int, int, str]
"""Start and end byte offset, new text."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one line changed. Example: `Mutant("def f(x):\\n    return x - 1\\n", 2, "binop")`"""

    source: str
    """The whole module."""
    line: int
    """The changed line, counted from 1."""
    kind: str
    """Key of `KIND_WEIGHTS`."""


@dataclass(frozen=True, slots=True)
class Change:
    """One bug, not yet made. Example: `Change("clamp", "compare", (210, 211, "<="))`"""

    function: str
    """`name`, or `Class.name`."""
    kind: str
    """Key of `wide.KINDS`, or `removed` or `rewritten`."""
    edit: Edit


def applied(source: str, edits: Sequence[Edit]) -> str:
    """The text with all edits made, which may not overlap. Raises SyntaxError when that is not Python."""
    data = source.encode()
    for start, end, new in sorted(edits, reverse=True):
        data = data[:start] + new.encode() + data[end:]
    text = data.decode()
    ast.parse(text)
    return text


def functions(tree: ast.Module) -> Iterator[tuple[str, FunctionNode]]:
    """The functions of a module and the methods of its classes (as `Class.method`), in order."""
    for node in tree.body:
        if isinstance(node, FunctionNode):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, FunctionNode):
                    yield f"{node.name}.{inner.name}", inner


def nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """The nodes of a function's body, f-strings left out (their positions are not exact before 3.12)."""
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        if not isinstance(node, ast.JoinedStr):
            yield node
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def has_docstring(function: FunctionNode) -> bool:
    """Whether the first statement is a docstring."""
    return ast.get_docstring(function, clean=False) is not None


class Text:
    """A module's bytes, addressed as `ast` does: by line and UTF-8 column."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def line(self, number: int) -> int:
        """Where line `number` (from 1) starts."""
        return min(self._starts[number - 1], len(self.data))

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Where a node starts."""
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Where a node ends."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Start and end of a node."""
        return self.start(node), self.end(node)

    def of(self, node: ast.expr | ast.stmt) -> str:
        """The text of a node."""
        return self.data[self.start(node) : self.end(node)].decode()

    def mutant(self, edit: Edit, kind: str) -> Mutant | None:
        """The edited module, unless the edit spans lines or changes nothing."""
        start, end, new = edit
        old = self.data[start:end]
        if b"\n" in old or "\n" in new or old == new.encode():
            return None
        source = (self.data[:start] + new.encode() + self.data[end:]).decode()
        return Mutant(source, self.data.count(b"\n", 0, start) + 1, kind)
