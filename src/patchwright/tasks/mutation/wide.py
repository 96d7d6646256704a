"""Every kind of bug Patchwright injects into real code: those of one line (`line`) and those of structure.

A change is a replacement of one stretch of text, so that all else keeps its formatting, comments included.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping

from patchwright.tasks.mutation.line import line_edits
from patchwright.tasks.mutation.text import Change, Edit, Text, functions, has_docstring, nodes

KINDS: Mapping[str, str] = {
    "compare": "a comparison turned: `<` to `<=` or `>`, `==` to `!=`, `in` to `not in`",
    "binop": "an arithmetic operator exchanged: `a + b` to `a - b`",
    "const": "a number off by one",
    "augassign": "an update exchanged: `+=` to `-=` or `=`",
    "boolop": "`and` and `or` exchanged",
    "not": "a `not` lost",
    "bool": "`True` and `False` exchanged",
    "func": "a function exchanged for its sibling: `min` for `max`, `startswith` for `endswith`",
    "wrongvar": "one of the function's variables taken for another",
    "swapargs": "two arguments in the wrong order",
    "noreturn": "a `return` lost: the value is computed and dropped",
    "negate": "the condition of an `if`, a `while` or a filter negated",
    "guard": "an early `return`, `raise` or `continue` with its condition lost",
    "noelse": "an `else` branch lost",
    "handler": "an `except` that catches less: one of several types lost, or what was caught raised again",
    "default": "another default value of a parameter",
    "statement": "an assignment or a call lost",
    "slice": "a slice that starts or ends one off, or loses a bound",
    "loop": "`break` and `continue` exchanged",
    "keyword": "a keyword argument lost",
    "string": "a text constant in the other case, or empty",
    "index": "first and last exchanged: `[0]` and `[-1]`",
    "ternary": "the two values of a conditional expression exchanged",
    "filter": "the filter of a comprehension lost",
    "sign": "a minus lost",
    "fallback": "a fallback lost: `a or b` to `a`, `d.get(k, v)` to `d.get(k)`",
    "conversion": "a conversion lost: `int(x)`, `sorted(x)` or `x.strip()` to `x`",
}
"""Kind -> what goes wrong."""

_CONVERSIONS = frozenset(
    {"int", "float", "str", "list", "tuple", "set", "sorted", "abs", "bytes", "reversed"}
)
_TIDYING = frozenset(
    {"strip", "lstrip", "rstrip", "lower", "upper", "copy", "casefold", "title", "splitlines"}
)
_Found = Iterator[tuple[str, Edit]]


def changes(source: str, function: str | None = None) -> list[Change]:
    """Every change of these kinds to a module's functions, or to the one named `function`, in text order.

    Some may not be Python when made: `applied` tells. Raises SyntaxError when `source` is not.
    """
    text = Text(source)
    found = []
    for name, node in functions(ast.parse(source)):
        if function in (None, name):
            edits = [*line_edits(text, node), *_of(text, node)]
            found += [Change(name, kind, edit) for kind, edit in edits if _tells(text, edit)]
    return list(dict.fromkeys(found))


def _tells(text: Text, edit: Edit) -> bool:
    return text.data[edit[0] : edit[1]] != edit[2].encode()


def _of(text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef) -> _Found:
    yield from _defaults(text, function)
    told = function.body[0] if has_docstring(function) else None
    for node in nodes(function):
        if node is not told:
            for kind, make in _MAKERS.get(type(node), ()):
                yield from ((kind, edit) for edit in make(text, node))
        for block in _blocks(node):
            yield from _lost(text, block)
    yield from _lost(text, function.body[1:] if told else function.body)


# --- statements -------------------------------------------------------------------------------


def _blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
            yield block


def _lost(text: Text, block: list[ast.stmt]) -> _Found:
    """Statements of a block, each lost with its lines."""
    for statement in block:
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr) and not _is_text(statement):
            yield "statement", _without(text, statement, len(block))
        elif isinstance(statement, ast.If) and _is_guard(text, statement):
            yield "guard", _without(text, statement, len(block))


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_guard(text: Text, node: ast.If) -> bool:
    leaves = isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue)
    return leaves and not node.orelse and text.data.startswith(b"if", text.start(node))


def _without(text: Text, statement: ast.stmt, siblings: int) -> Edit:
    """The statement's lines lost; `pass` in its place where it shares them, or is alone in its block."""
    start, end = text.span(statement)
    first = text.line(statement.lineno)
    after = text.data.find(b"\n", end)
    after = len(text.data) if after < 0 else after + 1
    alone = not text.data[first:start].strip() and not text.data[end:after].strip()
    return (first, after, "") if alone and siblings > 1 else (start, end, "pass")


def _no_else(text: Text, node: ast.If) -> Iterator[Edit]:
    if not node.orelse or text.data.startswith(b"elif", text.start(node.orelse[0])):
        return
    first, last = node.orelse[0], node.orelse[-1]
    number = first.lineno
    while number > node.lineno and not _line(text, number).startswith(b"else"):
        number -= 1
    if _line(text, number).startswith(b"else") and last.end_lineno is not None:
        yield text.line(number), text.line(last.end_lineno + 1), ""


def _line(text: Text, number: int) -> bytes:
    return text.data[text.line(number) : text.line(number + 1)].strip()


def _negated(text: Text, node: ast.If | ast.While | ast.IfExp) -> Iterator[Edit]:
    test = node.test
    if isinstance(test, ast.Constant):
        return
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return  # the kind `not` loses it
    yield *text.span(test), f"not ({text.of(test)})"


def _narrower(text: Text, node: ast.ExceptHandler) -> Iterator[Edit]:
    if isinstance(node.type, ast.Tuple) and len(node.type.elts) > 1:
        for gone in node.type.elts:
            kept = [text.of(other) for other in node.type.elts if other is not gone]
            yield *text.span(node.type), f"({', '.join(kept)},)"
    if not isinstance(node.body[-1], ast.Raise):
        yield text.start(node.body[0]), text.end(node.body[-1]), "raise"


def _turned(text: Text, node: ast.Break | ast.Continue) -> Iterator[Edit]:
    yield *text.span(node), "continue" if isinstance(node, ast.Break) else "break"


# --- expressions ------------------------------------------------------------------------------


def _slices(text: Text, node: ast.Subscript) -> Iterator[Edit]:
    if not isinstance(node.slice, ast.Slice):
        return
    for bound in (node.slice.lower, node.slice.upper):
        if bound is not None:
            yield *text.span(bound), ""
            if not isinstance(bound, ast.Constant):
                yield *text.span(bound), f"{text.of(bound)} + 1"


def _ends(text: Text, node: ast.Subscript) -> Iterator[Edit]:
    other = {"0": "-1", "-1": "0"}.get(text.of(node.slice))
    if other is not None:
        yield *text.span(node.slice), other


def _no_keyword(text: Text, node: ast.Call) -> Iterator[Edit]:
    """The keyword, and the comma before it."""
    given: list[ast.expr] = [*node.args, *(keyword.value for keyword in node.keywords)]
    for keyword in node.keywords:
        place = given.index(keyword.value)
        if keyword.arg and place:
            yield text.end(given[place - 1]), text.end(keyword.value), ""


def _texts(text: Text, node: ast.Constant) -> Iterator[Edit]:
    """The constant's own quotes and escapes stay; f-strings and text of several lines are left alone."""
    if not isinstance(node.value, str) or len(node.value) < 1:
        return
    start, end = text.span(node)
    written = text.data[start:end].decode()
    quote = written[-1]
    head = written.find(quote)
    if written.count(quote) != 2 or "\n" in written or "\\" in written:
        return
    inner = written[head + 1 : -1]
    yield start, end, f"{written[:head]}{quote}{quote}"
    if inner.swapcase() != inner and inner.isidentifier():
        yield start, end, f"{written[:head]}{quote}{inner.swapcase()}{quote}"


def _exchanged(text: Text, node: ast.IfExp) -> Iterator[Edit]:
    yield *text.span(node), f"{text.of(node.orelse)} if {text.of(node.test)} else {text.of(node.body)}"


def _unfiltered(
    text: Text, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
) -> Iterator[Edit]:
    for loop in node.generators:
        for test in loop.ifs:
            before = text.data.rfind(b"if", 0, text.start(test))
            yield before, text.end(test), ""
            if not isinstance(test, ast.UnaryOp):
                yield *text.span(test), f"not ({text.of(test)})"


def _no_sign(text: Text, node: ast.UnaryOp) -> Iterator[Edit]:
    if isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield *text.span(node), text.of(node.operand)


def _first_only(text: Text, node: ast.BoolOp) -> Iterator[Edit]:
    if isinstance(node.op, ast.Or) and len(node.values) == 2:
        yield *text.span(node), text.of(node.values[0])


def _no_fallback(text: Text, node: ast.Call) -> Iterator[Edit]:
    called = node.func
    if isinstance(called, ast.Attribute) and called.attr in {"get", "pop"} and len(node.args) == 2:
        yield text.end(node.args[0]), text.end(node.args[1]), ""


def _unconverted(text: Text, node: ast.Call) -> Iterator[Edit]:
    called = node.func
    if (
        isinstance(called, ast.Name)
        and called.id in _CONVERSIONS
        and len(node.args) == 1
        and not node.keywords
    ):
        if not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
            yield *text.span(node), text.of(node.args[0])
    elif isinstance(called, ast.Attribute) and called.attr in _TIDYING and not node.args:
        yield *text.span(node), text.of(called.value)


def _defaults(text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef) -> _Found:
    for default in (*function.args.defaults, *function.args.kw_defaults):
        if isinstance(default, ast.Constant):
            other = _other(default.value)
            if other is not None:
                yield "default", (*text.span(default), other)


def _other(value: object) -> str | None:
    match value:
        case bool():
            return str(not value)
        case int():
            return str(value + 1)
        case str():
            return repr("" if value else " ")
        case _:
            return None


_MAKERS: Mapping[type[ast.AST], tuple[tuple[str, Callable[..., Iterator[Edit]]], ...]] = {
    ast.If: (("negate", _negated), ("noelse", _no_else)),
    ast.While: (("negate", _negated),),
    ast.IfExp: (("negate", _negated), ("ternary", _exchanged)),
    ast.ExceptHandler: (("handler", _narrower),),
    ast.Break: (("loop", _turned),),
    ast.Continue: (("loop", _turned),),
    ast.Subscript: (("slice", _slices), ("index", _ends)),
    ast.Call: (("keyword", _no_keyword), ("fallback", _no_fallback), ("conversion", _unconverted)),
    ast.Constant: (("string", _texts),),
    ast.ListComp: (("filter", _unfiltered),),
    ast.SetComp: (("filter", _unfiltered),),
    ast.DictComp: (("filter", _unfiltered),),
    ast.GeneratorExp: (("filter", _unfiltered),),
    ast.UnaryOp: (("sign", _no_sign),),
    ast.BoolOp: (("fallback", _first_only),),
}
"""What can go wrong in a node of each type."""
