"""Every way one line of a Python function can go plausibly wrong.

A mutant changes text on exactly one line and keeps the module's syntax valid. `synthesis` makes its tasks of
these, in this order: a change here changes them. `agent.expert` takes deliberate mistakes from it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from patchwright.tasks.mutation.text import Edit, FunctionNode, Mutant, Text, functions, nodes

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


def mutants(source: str, function: str | None = None) -> list[Mutant]:
    """Every one-line mutant of a module's functions, or of the one named `function` (`Class.method` too).

    Example: `mutants("def f(x):\\n    return x + 1\\n")` has `x - 1`, `x * 1`, `x + 2`, a lost `return`, ...
    Raises SyntaxError when `source` is not Python.
    """
    text = Text(source)
    wanted = (node for name, node in functions(ast.parse(source)) if function in (None, name))
    return [mutant for node in wanted for mutant in _of_function(text, node)]


def pick(found: Sequence[Mutant], rng: Random) -> Mutant:
    """One mutant: first the kind by `KIND_WEIGHTS`, then any of that kind. `found` may not be empty."""
    kinds = sorted({mutant.kind for mutant in found})
    kind = rng.choices(kinds, [KIND_WEIGHTS[name] for name in kinds])[0]
    return rng.choice([mutant for mutant in found if mutant.kind == kind])


def _of_function(text: Text, node: FunctionNode) -> Iterator[Mutant]:
    for kind, edit in line_edits(text, node):
        mutant = text.mutant(edit, kind)
        if mutant is not None:
            yield mutant


def line_edits(text: Text, function: FunctionNode) -> Iterator[tuple[str, Edit]]:
    """Every edit of these kinds in a function; some span lines or change nothing."""
    names = _names(function)
    for inner in nodes(function):
        yield from _edits(text, inner, names)


def _names(function: FunctionNode) -> list[str]:
    """Parameters and local variables that the body mentions: what could be taken for one another."""
    nodes = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
    own = {parameter.arg for parameter in function.args.args}
    own |= {node.id for node in nodes if isinstance(node.ctx, ast.Store)}
    return sorted(own & {node.id for node in nodes})


def _edits(text: Text, node: ast.AST, names: Sequence[str]) -> Iterator[tuple[str, Edit]]:
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
    text: Text, kind: str, left: ast.expr, right: ast.expr, table: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Edit]]:
    """Another operator between two operands; parentheses may stand in the gap."""
    gap = text.data[text.end(left) : text.start(right)].decode()
    core = gap.replace("(", " ").replace(")", " ").strip()
    start = text.end(left) + len(gap[: gap.find(core)].encode())
    for new in table.get(core, ()):
        yield kind, (start, start + len(core), new)


def _constant(text: Text, node: ast.Constant) -> Iterator[tuple[str, Edit]]:
    span = text.start(node), text.end(node)
    if isinstance(node.value, bool):
        yield "bool", (*span, str(not node.value))
    elif isinstance(node.value, int):
        yield from (("const", (*span, str(node.value + d))) for d in (1, -1) if node.value + d >= 0)


def _call(text: Text, node: ast.Call) -> Iterator[tuple[str, Edit]]:
    called = node.func
    if isinstance(called, ast.Name | ast.Attribute):
        name = called.id if isinstance(called, ast.Name) else called.attr
        end = text.end(called)
        yield from (("func", (end - len(name), end, new)) for new in _CALLED.get(name, ()))
    if len(node.args) == 2 and not node.keywords:
        first, second = node.args
        span = text.start(first), text.end(second)
        yield "swapargs", (*span, f"{text.of(second)}, {text.of(first)}")


def _dropped(text: Text, kind: str, node: ast.expr | ast.stmt, word: bytes) -> Iterator[tuple[str, Edit]]:
    start = text.start(node)
    if text.data.startswith(word, start):
        yield kind, (start, start + len(word), "")
