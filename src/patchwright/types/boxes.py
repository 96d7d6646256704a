"""What a command did in a box."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Exec:
    """What one command did in a box. A failing or timed-out command is a result, not an error.

    Example: `Exec(code=1, output="E assert 3 == 4\\n")`
    """

    code: int
    """Exit code; 128 + signal when killed; 124 when timed out."""
    output: str
    """stdout and stderr in the order written, decoded as UTF-8 with replacement; head and tail are
    kept when it was too long."""
    timed_out: bool = False
    omitted: int = 0
    """Bytes left out of the middle of `output`."""
    seconds: float = 0.0
