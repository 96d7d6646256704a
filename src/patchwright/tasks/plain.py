"""Runs the small functions of synthesized tasks in this process, within a budget of loop steps.

Starting a box for every candidate bug would take hours. The language is checked before anything runs: no
imports, no attributes but a few methods of strings, lists and dicts, no names with a leading underscore, so
nothing outside the function can be reached; and every loop counts its steps, so a bug that never ends is an
outcome like any other, and the same one on every machine.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

STEPS = 100
"""Loop iterations a call may take; the example calls need a quarter of it."""

_NAMES = "abs bool dict enumerate int len list max min range reversed set sorted str sum tuple zip"
_METHODS = "append endswith extend get items join keys lower split startswith title upper values"
_ALLOWED_METHODS = frozenset(_METHODS.split())
_BUILTINS = {name: getattr(builtins, name) for name in _NAMES.split()} | {"AssertionError": AssertionError}
_NODES = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Expr, ast.Pass, ast.Assert),
    *(ast.Assign, ast.AugAssign, ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.IfExp),
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Compare, ast.Call, ast.keyword, ast.Constant, ast.Name),
    *(ast.Attribute, ast.Subscript, ast.Slice, ast.List, ast.Tuple, ast.Dict, ast.Set),
    *(ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.comprehension),
    *(ast.expr_context, ast.boolop, ast.unaryop, ast.cmpop),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod),
)
_TICK = ast.parse("_tick()").body[0]
assert isinstance(_TICK, ast.Expr)
_TICK_VALUE = _TICK.value


class NotPlain(Exception):
    """The source uses more than the small language, and was not run."""


class _Endless(BaseException):
    """The budget of loop steps is spent."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call did: gave a value, raised, or went on for ever."""

    value: Any = None
    error: str = ""
    """Name of the exception raised, if one was."""
    endless: bool = False

    def gives(self, value: Any) -> bool:
        """Whether an assertion that the call equals `value` would hold."""
        return not self.error and not self.endless and bool(self.value == value)


class Program:
    """A module in the small language, ready to be called.

    Example: `Program("def f(x):\\n    return x + 1\\n").call("f", (2,)).value == 3`
    """

    def __init__(self, source: str) -> None:
        """Raises NotPlain, also when `source` is not Python."""
        self._left = STEPS
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError) as error:
            raise NotPlain(str(error)) from error
        _check(tree)
        self._names: dict[str, Any] = {"__builtins__": _BUILTINS, "_tick": self._tick}
        exec(compile(tree, "<plain>", "exec"), self._names)  # checked above: definitions only

    def call(self, name: str, arguments: Sequence[Any]) -> Outcome:
        """Call a function of the module with copies of `arguments`."""
        self._left = STEPS
        try:
            return Outcome(self._names[name](*(_copy(argument) for argument in arguments)))
        except _Endless:
            return Outcome(endless=True)
        except Exception as error:
            return Outcome(error=type(error).__name__)

    def _tick(self) -> bool:
        self._left -= 1
        if self._left < 0:
            raise _Endless
        return True


def passes_tests(module: str, tests: str) -> bool:
    """Whether every `test_` function of a test file holds for a module it imports by `from ... import`.

    Raises NotPlain when either of them is more than the small language.
    """
    try:
        body = [node for node in ast.parse(tests).body if not isinstance(node, ast.ImportFrom)]
    except (SyntaxError, ValueError) as error:
        raise NotPlain(str(error)) from error
    program = Program(f"{module}\n{ast.unparse(ast.Module(body, []))}\n")
    names = [node.name for node in body if isinstance(node, ast.FunctionDef)]
    return all(program.call(name, ()).gives(None) for name in names if name.startswith("test_"))


def _check(tree: ast.Module) -> None:
    """Refuse what is not plain, and give every loop its tick."""
    if not all(isinstance(node, ast.FunctionDef) for node in tree.body):
        raise NotPlain("a statement outside a function")
    for node in ast.walk(tree):
        if not isinstance(node, _NODES):
            raise NotPlain(type(node).__name__)
        _check_names(node)
        if isinstance(node, ast.For | ast.While):
            node.body.insert(0, ast.Pass())
    for node in ast.walk(tree):
        _add_tick(node)


def _check_names(node: ast.AST) -> None:
    match node:
        case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) if name.startswith("_"):
            raise NotPlain(name)
        case ast.Attribute(attr=name) if name not in _ALLOWED_METHODS:
            raise NotPlain(name)
        case ast.FunctionDef(decorator_list=[_, *_]):
            raise NotPlain("a decorator")


def _add_tick(node: ast.AST) -> None:
    if isinstance(node, ast.For | ast.While):
        node.body[0] = _TICK
    elif isinstance(node, ast.comprehension):
        node.ifs.insert(0, _TICK_VALUE)


def _copy(value: Any) -> Any:
    """A deep copy of lists, tuples and dicts of plain values; much faster than `copy.deepcopy`."""
    if isinstance(value, list):
        return [_copy(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_copy(item) for item in value)
    if isinstance(value, dict):
        return {key: _copy(item) for key, item in value.items()}
    return value
