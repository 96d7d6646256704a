"""The issue of a task: what a user of the library would report, and never where the mistake is.

What tests said comes out of a box, what a model wrote out of a model: both are shortened, and dropped where
they hold a line of the solution.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Mapping, Sequence

from patchwright.tasks.library import Library
from patchwright.tasks.mutation import functions
from patchwright.tasks.synth.bench import Failure, brief
from patchwright.tasks.synth.writer import Writer

_MOST_LINES = 25
_MOST_NAMED = 5
_MOST_WRITTEN = 4000
_TELLING = 6
"""Characters below which a line of the solution (`else:`, `x = 1`) says nothing about where it is."""

_ASK = """Below is a test of the Python library {name}, and how it fails with the current version.
Write the issue a user of the library would open about this: a title line, what was done (a short example of
calls, taken from the test), what happened, what was expected. Describe behaviour only. You do not know the
cause: name no file, no line and no internal function, propose no fix, and do not mention the test.

{shown}

It fails with:
{said}
"""


def template(library: Library, failures: Mapping[str, Failure], command: str, solution: str) -> str:
    """An issue made of the first failing test: its source up to the line that failed, and what was said."""
    test, failure = next(iter(failures.items()))
    shown = excerpt(library, test, failure)
    file, _, name = test.partition("::")
    head = f"{_plain(name)} in {file} fails with: {brief(failure.message)}"
    body = f"\n\n{textwrap.indent(shown, '    ')}" if shown and not leaks(shown, solution) else ""
    head = head if not leaks(head, solution) else f"{_plain(name)} in {file} fails with {failure.error}."
    return f"{head}{body}{_others(list(failures)[1:])}\n\nRun its tests with `{command}`."


async def written(
    writer: Writer, library: Library, name: str, failures: Mapping[str, Failure], solution: str
) -> str:
    """An issue in a model's words; empty when it gives the solution away or says nothing.

    Raises EngineError as `writer` does.
    """
    test, failure = next(iter(failures.items()))
    ask = _ASK.format(name=name, shown=excerpt(library, test, failure), said=failure.message[:2000])
    text = (await writer.ask(ask)).strip()
    own = {path.rpartition("/")[2] for path in library.sources}
    told = any(re.search(rf"(?<![\w]){re.escape(file)}(?![\w])", text) for file in own - {"__init__.py"})
    bad = not text or len(text) > _MOST_WRITTEN or told or leaks(text, solution)
    return "" if bad else "".join(c for c in text if c.isprintable() or c == "\n")


def leaks(text: str, solution: str) -> bool:
    """Whether a text holds a diff, or a line that the solution adds or takes away."""
    if "diff --git" in text or re.search(r"^@@ ", text, re.MULTILINE):
        return True
    plain = _squeezed(text)
    changed = [line[1:] for line in solution.split("\n") if re.match(r"[+-](?![+-]{2} )", line)]
    return any(len(line) >= _TELLING and line in plain for line in map(_squeezed, changed))


def excerpt(library: Library, test: str, failure: Failure) -> str:
    """The test's own source, from its first line to the statement that failed."""
    file = test.partition("::")[0]
    name = ".".join(part.partition("[")[0] for part in test.split("::")[1:])
    source = library.test_files.get(file, "")
    for found, node in functions(ast.parse(source)) if source else ():
        if found == name:
            inside = [at for path, at in failure.frames if path.endswith(f"/{file}")]
            until = max(
                (at for at in inside if node.lineno <= at <= (node.end_lineno or 0)), default=node.end_lineno
            )
            lines = source.split("\n")[node.lineno - 1 : until]
            return textwrap.dedent("\n".join(_cut(lines)))
    return ""


def _cut(lines: Sequence[str]) -> list[str]:
    """Head and tail of a long test."""
    if len(lines) <= _MOST_LINES:
        return list(lines)
    return [
        *lines[:3],
        f"{lines[0][: len(lines[0]) - len(lines[0].lstrip())]}    ...",
        *lines[4 - _MOST_LINES :],
    ]


def _others(tests: Sequence[str]) -> str:
    if not tests:
        return ""
    named = "".join(f"\n- {_plain(test.partition('::')[2])}" for test in tests[:_MOST_NAMED])
    more = f"\n- and {len(tests) - _MOST_NAMED} more" if len(tests) > _MOST_NAMED else ""
    return f"\n\nSo do:\n{named}{more}"


def _plain(name: str) -> str:
    return brief(name.replace("::", "."), 120)


def _squeezed(text: str) -> str:
    return "".join(text.split())
