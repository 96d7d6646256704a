"""Exit codes, and the commands whose 1 is an answer rather than a failure. `docs/cli.md` is made of this."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

__all__ = ["ANSWERS", "MEANINGS", "Exit"]


class Exit(IntEnum):
    """What the program ends with."""

    DONE = 0
    FAILED = 1
    MISTAKE = 2
    INTERRUPTED = 130


MEANINGS: Mapping[Exit, str] = {
    Exit.DONE: "done",
    Exit.FAILED: "the work failed (infrastructure, a full disk), or a command below answers no",
    Exit.MISTAKE: "a mistake in what was given: an option, a file, the configuration; nothing was begun",
    Exit.INTERRUPTED: "interrupted by Ctrl-C; most commands go on where they stopped when given again. "
    "Servers (`serve`, `gateway serve`, `node serve`, `pool serve`, `view`) end with 0 then",
}

ANSWERS: Mapping[str, str] = {
    "agents check": "a promise is broken",
    "check agent": "a promise is broken",
    "check engine": "a promise is broken",
    "check sandbox": "a promise is broken",
    "doctor": "something that is needed is missing",
    "eval": "an attempt is void; the same command tries it again",
    "grade": "a prediction has no verdict; the same command tries it again",
    "images pull": "an image cannot be had",
    "tasks build-env": "an environment cannot be built",
    "tasks overlap": "a task is the benchmark's too",
    "tasks validate": "a task is broken or flaky, or could not be examined",
}
"""What 1 says of a command, all of whose work was done."""
