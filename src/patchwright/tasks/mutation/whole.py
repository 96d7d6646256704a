"""Bugs of a whole function: its body gone, or written anew by somebody else."""

from __future__ import annotations

import ast
import textwrap

from patchwright.tasks.mutation.text import Change, FunctionNode, Text, functions, has_docstring

_GONE = "raise NotImplementedError"


def removal(source: str, function: str) -> Change | None:
    """The function without its body; signature and docstring stay. None when there is no body to speak of.

    Raises SyntaxError when `source` is not Python.
    """
    node = _find(source, function)
    if node is None or not _does_something(node):
        return None
    start, end = _behaviour(Text(source), node)
    return Change(function, "removed", (start, end, _GONE))


def replacement(source: str, function: str, written: str) -> Change | None:
    """The function as `written`: text that defines it once, with the same parameters. None when it does not,
    or does the same by the letter.

    Only statements are taken over; signature, decorators and docstring stay. Raises SyntaxError when `source`
    is not Python.
    """
    node = _find(source, function)
    other = _definition(written, function.rpartition(".")[2])
    if node is None or other is None or ast.dump(node.args) != ast.dump(other.args):
        return None
    if ast.dump(ast.Module(_statements(node), [])) == ast.dump(ast.Module(_statements(other), [])):
        return None
    text = Text(source)
    start, end = _behaviour(text, node)
    body = _dedented(_only_code(written), other)
    indent = " " * (node.col_offset + 4) if _on_its_header(node) else " " * node.body[-1].col_offset
    new = textwrap.indent(body, indent).lstrip()
    return Change(function, "rewritten", (start, end, f"\n{indent}{new}" if _on_its_header(node) else new))


def stub(source: str, function: str) -> str:
    """The function's own text, for a person or a model to read. Raises LookupError when there is none."""
    node = _find(source, function)
    if node is None:
        raise LookupError(function)
    return textwrap.dedent(" " * node.col_offset + Text(source).of(node))


def _find(source: str, function: str) -> FunctionNode | None:
    """The last of that name: it is the one that counts."""
    found = [node for name, node in functions(ast.parse(source)) if name == function]
    return found[-1] if found else None


def _statements(node: FunctionNode) -> list[ast.stmt]:
    return node.body[1:] if has_docstring(node) else node.body


def _does_something(node: FunctionNode) -> bool:
    """An empty body, or one that only raises, is no behaviour to miss."""
    return any(not isinstance(s, ast.Pass | ast.Raise) and not _is_constant(s) for s in _statements(node))


def _is_constant(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _behaviour(text: Text, node: FunctionNode) -> tuple[int, int]:
    statements = _statements(node)
    first = statements[0] if statements else node.body[-1]
    return _first(text, first), text.end(node.body[-1])


def _first(text: Text, statement: ast.stmt) -> int:
    """Where a statement starts, with its decorators."""
    decorators = getattr(statement, "decorator_list", ())
    return text.line(decorators[0].lineno) + statement.col_offset if decorators else text.start(statement)


def _on_its_header(node: FunctionNode) -> bool:
    """Whether the body follows the colon on the line of the signature."""
    return node.body[0].lineno == node.lineno


def _only_code(written: str) -> str:
    """What is inside the first fence, if there is one, without its common indentation."""
    _, fence, rest = written.partition("```")
    code = rest.partition("\n")[2].partition("```")[0] if fence else written
    return textwrap.dedent(code)


def _definition(written: str, name: str) -> FunctionNode | None:
    try:
        tree = ast.parse(_only_code(written))
    except (SyntaxError, ValueError, RecursionError):
        return None
    found = [node for node in tree.body if isinstance(node, FunctionNode) and node.name == name]
    return found[0] if len(found) == 1 and _statements(found[0]) else None


def _dedented(code: str, node: FunctionNode) -> str:
    start, end = _behaviour(Text(code), node)
    data = code.encode()
    line = data.rfind(b"\n", 0, start) + 1
    blank = b" " * (start - line)
    return textwrap.dedent((blank + data[start:end]).decode())
