"""What a library's source folder holds: its functions, and which of its own tests mention them.

Read from the text alone; nothing of the library runs here. `pypi` breaks the functions and runs the tests.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.tasks.mutate import functions

_ASIDE = frozenset(
    {"doc", "docs", "build", "dist", "examples", "benchmarks", "downstream", "scripts", "tools"}
)
_TESTS = frozenset({"test", "tests", "testing"})
_NOT_MODULES = frozenset({"setup.py", "conftest.py", "noxfile.py", "tasks.py"})
_MAX_TESTS = 20
"""Tests of one function that are run; those named after it come first."""
_OTHER_TESTS = 5
"""Tests of the same file that do not mention the function, as a check on what else a fix breaks."""


@dataclass(frozen=True, slots=True)
class Target:
    """A function that some tests mention.

    Example: `Target("src/lib/core.py", "chunked", ("tests/test_core.py::ChunkedTests::test_even",))`
    """

    file: str
    function: str
    """`name`, or `Class.name`."""
    tests: tuple[str, ...]
    """Node ids, without parameters."""


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

    def targets(self, collected: Sequence[str]) -> list[Target]:
        """The public functions that some of the `collected` tests (node ids without parameters) mention."""
        mentions = self._mentions(frozenset(collected))
        found = []
        for file, source in self.sources.items():
            for function in dict.fromkeys(name for name, _ in functions(ast.parse(source))):
                name = function.rpartition(".")[2]
                tests = [] if name.startswith("_") else [t for t, words in mentions.items() if name in words]
                if tests:
                    found.append(Target(file, function, _chosen(name, tests, list(mentions))))
        return found

    def _mentions(self, collected: frozenset[str]) -> dict[str, frozenset[str]]:
        """Node id -> the names its source mentions."""
        tests = {}
        for file, source in self.test_files.items():
            for name, node in functions(ast.parse(source)):
                test = f"{file}::{name.replace('.', '::')}"
                if test in collected:
                    tests[test] = frozenset(_words(node))
        return tests


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
    if not any(Path(name).name != "conftest.py" for name in test_files):
        raise ConfigError(f"{root.name} ships no tests in its sdist; take another version or library")
    if not sources:
        raise ConfigError(f"{root.name} has no Python modules in its sdist; take a library in pure Python")
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


def _words(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name):
            yield inner.id
        elif isinstance(inner, ast.Attribute):
            yield inner.attr


def _chosen(name: str, tests: list[str], everything: list[str]) -> tuple[str, ...]:
    """Tests named after the function, then others that mention it, then a few that do not."""
    plain = name.replace("_", "").lower()
    ranked = sorted(tests, key=lambda test: plain not in test.replace("_", "").lower())[:_MAX_TESTS]
    files = {test.partition("::")[0] for test in ranked}
    known = set(tests)
    others = [test for test in everything if test.partition("::")[0] in files and test not in known]
    return (*ranked, *others[:_OTHER_TESTS])
