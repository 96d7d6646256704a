"""Bug injection: every way one line of a Python function can go plausibly wrong.

A mutant changes text on exactly one line and keeps the module's syntax valid. Sits at the bottom of
`tasks`: `synthesis` and `pypi` turn mutants into tasks, `agent.expert` takes deliberate mistakes from it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

KIND_WEIGHTS: Mapping[str, int] = {
    "compare": 3,
    "binop": 3,
    "const": 2,
    "augassign": 2,
    "boolop": 2,
    "not": 2,
    "bool": 2,
    "func": 2,
    "wrongvar": 1,
    "swapargs": 1,
    "noreturn": 1,
}
"""How often each kind of bug is picked where it is possible."""

_COMPARE = {
    "<": ("<=", ">"),
    "<=": ("<", ">="),
    ">": (">=", "<"),
    ">=": (">", "<="),
    "==": ("!=",),
    "!=": ("==",),
    "is": ("is not",),
    "is not": ("is",),
    "in": ("not in",),
    "not in": ("in",),
}
_BINARY = {"+": ("-", "*"), "-": ("+",), "*": ("+",), "//": ("*", "%"), "/": ("*",), "%": ("//",)}
_AUGMENTED = {"+=": ("-=", "="), "-=": ("+=",), "*=": ("+=",), "//=": ("*=",)}
_BOOLEAN = {"and": ("or",), "or": ("and",)}
_CALLED = {
    "min": ("max",),
    "max": ("min",),
    "upper": ("lower",),
    "lower": ("upper",),
    "startswith": ("endswith",),
    "endswith": ("startswith",),
    "sum": ("len", "max"),
    "len": ("sum",),
    "append": ("extend",),
}

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_Edit = tuple[int, int, str]  # start and end byte offset, new text


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one line changed. Example: `Mutant("def f(x):\\n    return x - 1\\n", 2, "binop")`"""

    source: str
    """The whole module."""
    line: int
    """The changed line, counted from 1."""
    kind: str
    """Key of `KIND_WEIGHTS`."""


def mutants(source: str, function: str | None = None) -> list[Mutant]:
    """Every one-line mutant of a module's functions, or of the one named `function` (`Class.method` too).

    Example: `mutants("def f(x):\\n    return x + 1\\n")` has `x - 1`, `x * 1`, `x + 2`, a lost `return`, ...
    Raises SyntaxError when `source` is not Python.
    """
    text = _Text(source)
    wanted = (node for name, node in functions(ast.parse(source)) if function in (None, name))
    return [mutant for node in wanted for mutant in _of_function(text, node)]


def pick(found: Sequence[Mutant], rng: Random) -> Mutant:
    """One mutant: first the kind by `KIND_WEIGHTS`, then any of that kind. `found` may not be empty."""
    kinds = sorted({mutant.kind for mutant in found})
    kind = rng.choices(kinds, [KIND_WEIGHTS[name] for name in kinds])[0]
    return rng.choice([mutant for mutant in found if mutant.kind == kind])


def functions(tree: ast.Module) -> Iterator[tuple[str, FunctionNode]]:
    """The functions of a module and the methods of its classes (as `Class.method`), in order."""
    for node in tree.body:
        if isinstance(node, FunctionNode):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, FunctionNode):
                    yield f"{node.name}.{inner.name}", inner


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
    mark = "\\ No newline at end of file"
    return [*body[:-1], mark, body[-1], mark] if changed else [*body, mark]


class _Text:
    """A module's bytes, addressed as `ast` does: by line and UTF-8 column."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.split(b"\n"):
            self._starts.append(self._starts[-1] + len(line) + 1)

    def start(self, node: ast.expr | ast.stmt) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def mutant(self, edit: _Edit, kind: str) -> Mutant | None:
        """The edited module, unless the edit spans lines or changes nothing."""
        start, end, new = edit
        old = self.data[start:end]
        if b"\n" in old or "\n" in new or old == new.encode():
            return None
        source = (self.data[:start] + new.encode() + self.data[end:]).decode()
        return Mutant(source, self.data.count(b"\n", 0, start) + 1, kind)


def _of_function(text: _Text, node: FunctionNode) -> Iterator[Mutant]:
    names = _names(node)
    for inner in _nodes(node):
        for kind, edit in _edits(text, inner, names):
            mutant = text.mutant(edit, kind)
            if mutant is not None:
                yield mutant


def _nodes(function: FunctionNode) -> Iterator[ast.AST]:
    """The nodes of a function's body, f-strings left out (their positions are not exact before 3.12)."""
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        if not isinstance(node, ast.JoinedStr):
            yield node
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def _names(function: FunctionNode) -> list[str]:
    """Parameters and local variables that the body mentions: what could be taken for one another."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    own = {parameter.arg for parameter in function.args.args}
    own |= {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return sorted(own & {node.id for node in nodes})


def _edits(text: _Text, node: ast.AST, names: Sequence[str]) -> Iterator[tuple[str, _Edit]]:
    match node:
        case ast.Compare():
            yield from _operator(text, "compare", node.left, node.comparators[0], _COMPARE)
        case ast.BinOp():
            yield from _operator(text, "binop", node.left, node.right, _BINARY)
        case ast.BoolOp():
            yield from _operator(text, "boolop", node.values[0], node.values[1], _BOOLEAN)
        case ast.AugAssign():
            yield from _operator(text, "augassign", node.target, node.value, _AUGMENTED)
        case ast.Call():
            yield from _call(text, node)
        case ast.Constant():
            yield from _constant(text, node)
        case ast.Name(id=name, ctx=ast.Load()) if name in names:
            span = text.start(node), text.end(node)
            yield from (("wrongvar", (*span, other)) for other in names if other != name)
        case ast.UnaryOp(op=ast.Not()):
            yield from _dropped(text, "not", node, b"not ")
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield from _dropped(text, "noreturn", node, b"return ")


def _operator(
    text: _Text, kind: str, left: ast.expr, right: ast.expr, table: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, _Edit]]:
    """Another operator between two operands; parentheses may stand in the gap."""
    gap = text.data[text.end(left) : text.start(right)].decode()
    core = gap.replace("(", " ").replace(")", " ").strip()
    start = text.end(left) + len(gap[: gap.find(core)].encode())
    for new in table.get(core, ()):
        yield kind, (start, start + len(core), new)


def _constant(text: _Text, node: ast.Constant) -> Iterator[tuple[str, _Edit]]:
    span = text.start(node), text.end(node)
    if isinstance(node.value, bool):
        yield "bool", (*span, str(not node.value))
    elif isinstance(node.value, int):
        yield from (("const", (*span, str(node.value + d))) for d in (1, -1) if node.value + d >= 0)


def _call(text: _Text, node: ast.Call) -> Iterator[tuple[str, _Edit]]:
    called = node.func
    if isinstance(called, ast.Name | ast.Attribute):
        name = called.id if isinstance(called, ast.Name) else called.attr
        end = text.end(called)
        yield from (("func", (end - len(name), end, new)) for new in _CALLED.get(name, ()))
    if len(node.args) == 2 and not node.keywords:
        first, second = node.args
        span = text.start(first), text.end(second)
        yield "swapargs", (*span, f"{text.of(second)}, {text.of(first)}")


def _dropped(text: _Text, kind: str, node: ast.expr | ast.stmt, word: bytes) -> Iterator[tuple[str, _Edit]]:
    start = text.start(node)
    if text.data.startswith(word, start):
        yield kind, (start, start + len(word), "")
