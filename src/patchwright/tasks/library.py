"""What a library's source folder holds: its modules, their functions, and its tests.

Read from the text alone; nothing of the library runs here. `synth` breaks the functions and runs the tests.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.tasks.mutation import functions

_ASIDE = frozenset(
    {"doc", "docs", "build", "dist", "examples", "benchmarks", "downstream", "scripts", "tools"}
)
_TESTS = frozenset({"test", "tests", "testing"})
_NOT_MODULES = frozenset({"setup.py", "conftest.py", "noxfile.py", "tasks.py"})


@dataclass(frozen=True, slots=True)
class Library:
    """A library's folder, as far as its text tells. All paths are relative to `root`."""

    root: Path
    package: str
    """What tests import: a package or module of the library."""
    path: str
    """The folder `package` is imported from: `src` or `.`."""
    sources: Mapping[str, str]
    """Modules of the library: path -> text."""
    test_files: Mapping[str, str]
    """Test files and conftest files: path -> text."""
    _known: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict, compare=False)

    @property
    def runnable(self) -> list[str]:
        """Test files that pytest is given."""
        return [name for name in self.test_files if Path(name).name != "conftest.py"]

    def function_at(self, file: str, line: int) -> str | None:
        """The function or method of `file` that has `line` in it, decorators included."""
        return next((name for name, first, last in self._spans(file) if first <= line <= last), None)

    def _spans(self, file: str) -> list[tuple[str, int, int]]:
        if file not in self._known:
            self._known[file] = [
                (name, min([node.lineno, *(d.lineno for d in node.decorator_list)]), node.end_lineno or 0)
                for name, node in functions(ast.parse(self.sources[file]))
            ]
        return self._known[file]


def read_library(root: Path) -> Library:
    """Read the folder of a source distribution.

    Raises ConfigError when it holds no tests or no modules.
    """
    base = root / "src" if (root / "src").is_dir() else root
    texts = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*.py"))}
    tests = {name: path for name, path in texts.items() if _is_test(name)}
    inside = {name: path for name, path in texts.items() if path.is_relative_to(base)}
    modules = {name: path for name, path in inside.items() if _is_module(name)}
    sources, test_files = _python(modules), _python(tests)
    if all(Path(name).name == "conftest.py" for name in test_files):
        raise ConfigError(f"{root.name} ships no tests; take another version or library")
    if not sources:
        raise ConfigError(f"{root.name} has no Python modules; take a library in pure Python")
    path = base.relative_to(root).as_posix()
    return Library(root, _package(root, sources, path), path, sources, test_files)


def _is_test(name: str) -> bool:
    path = Path(name)
    if _ASIDE.intersection(path.parts[:-1]) or path.parts[0].startswith("."):
        return False
    return path.name == "conftest.py" or path.stem.startswith("test_") or path.stem.endswith("_test")


def _is_module(name: str) -> bool:
    path = Path(name)
    aside = (_ASIDE | _TESTS).intersection(path.parts[:-1])
    hidden = any(part.startswith(".") for part in path.parts)
    return not aside and not hidden and not _is_test(name) and path.name not in _NOT_MODULES


def _python(files: Mapping[str, Path]) -> dict[str, str]:
    """The texts that are Python in UTF-8 with lines ended by a newline, as mutants need them."""
    found = {}
    for name, path in files.items():
        try:
            text = path.read_bytes().decode()
            ast.parse(text)
        except (ValueError, SyntaxError, RecursionError):
            continue
        if "\r" not in text.replace("\r\n", "\n"):
            found[name] = text
    return found


def _package(root: Path, sources: Mapping[str, str], path: str) -> str:
    """The top-level name that is the library's own, else the one most modules are in."""
    tops = [Path(name).relative_to(path).parts[0].removesuffix(".py") for name in sources]
    named = root.name.rpartition("-")[0].replace("-", "_")
    names = sorted({top for top in tops if top.isidentifier()} or {named})
    return max(names, key=lambda top: (top == named, tops.count(top)))
