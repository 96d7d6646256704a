"""`patchwright bench grading`: what grading costs beside the test command it runs."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from patchwright.grade.tests import Grader, Grading
from patchwright.sandbox.base import SandboxBackend
from patchwright.sandbox.select import open_backend
from patchwright.types import Limits, Task, Tests

__all__ = ["Overhead", "grading_overhead", "overhead_table"]

_TEST = (
    "import time\nfrom mod import double\n\ndef test_two():\n    time.sleep({seconds})\n"
    "    assert double(3) == 6\n"
)
_TEST_PATCH = (
    "diff --git a/test_new.py b/test_new.py\nnew file mode 100644\n--- /dev/null\n+++ b/test_new.py\n"
    "@@ -0,0 +1,4 @@\n+from mod import double\n+\n+def test_new():\n+    assert double(4) == 8\n"
)
_FIX = (
    "diff --git a/mod.py b/mod.py\n--- a/mod.py\n+++ b/mod.py\n@@ -1,2 +1,2 @@\n"
    " def double(x):\n-    return x + 2\n+    return x * 2  # {number}\n"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """Medians over the rounds. Example: `Overhead(..., command_ms=5300.0, overhead_ms=40.0)`"""

    sandbox: str
    rounds: int
    command_ms: float
    """The test command alone, inside of the box."""
    overhead_ms: float
    """Everything else: box, patch, test patch, log, verdict, closing."""
    overhead_percent: float


async def grading_overhead(
    sandbox: str, *, seconds: float, rounds: int, image: str | None = None
) -> Overhead:
    """Grade `rounds` different patches, one after the other, by a test that takes so many seconds."""
    backend = open_backend(sandbox, image=image)
    try:
        await _one(backend, seconds, -1)  # the first box starts the backend's helpers
        done = [await _one(backend, seconds, number) for number in range(rounds)]
    finally:
        await backend.close()
    command = statistics.median(grading.command_seconds for grading in done)
    over = statistics.median(grading.grade.seconds - grading.command_seconds for grading in done)
    return Overhead(
        sandbox=sandbox,
        rounds=rounds,
        command_ms=round(command * 1000, 1),
        overhead_ms=round(over * 1000, 1),
        overhead_percent=round(100 * over / command, 2),
    )


async def _one(backend: SandboxBackend, seconds: float, number: int) -> Grading:
    task = Task(
        id="bench",
        prompt="",
        files={"mod.py": "def double(x):\n    return x + 2\n"},
        tests=Tests(
            command="python3 -m pytest -q -rA -p no:cacheprovider test_mod.py test_new.py",
            fail_to_pass=("test_mod.py::test_two", "test_new.py::test_new"),
            files={"test_mod.py": _TEST.format(seconds=seconds)},
            patch=_TEST_PATCH,
        ),
        limits=Limits(test_seconds=seconds + 120),
    )
    return await Grader(backend).grading(task, _FIX.format(number=number))


def overhead_table(found: Overhead) -> Table:
    """One row."""
    table = Table(title="grading: beside the test command", title_justify="left", box=None, pad_edge=False)
    row: dict[str, Any] = asdict(found)
    for name in row:
        table.add_column(name.replace("_", " "), justify="right")
    table.add_row(*(str(value) for value in row.values()))
    return table
