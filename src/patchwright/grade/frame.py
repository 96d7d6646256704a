"""The frame around sealed results: a log whose verdict nobody in the box can have written.

`run.py` puts a witness's statuses below what the tests printed, under a line drawn when the run was over;
`rules.py` reads no more than stands there.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable

__all__ = ["framed", "unframed"]

_HEAD = "patchwright: what the runner reported stands below the line"


def framed(log: str, statuses: Iterable[tuple[str, str]]) -> str:
    """A log and, below the line that its first line names, the statuses as pytest's summary words them.

    Example: `framed("1 passed", [("PASSED", "t.py::a")])`
    """
    line = f"{_HEAD} {secrets.token_hex(16)}"
    rows = "".join(f"{word} {' '.join(name.splitlines())}\n" for word, name in statuses)
    return f"{line}\n{log}\n{line}\n{rows}"


def unframed(log: str) -> tuple[str, str]:
    """What was printed, and what of it may be believed: in a log without a frame the same."""
    first, _, rest = log.partition("\n")
    if not first.startswith(_HEAD):
        return log, log
    printed, _, sealed = rest.rpartition(f"\n{first}\n")
    return printed, sealed
