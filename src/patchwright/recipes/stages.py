"""Stages of runs by pattern, as `--stage` gives them."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from patchwright.config import nearest
from patchwright.errors import ConfigError

__all__ = ["stages_like"]


def stages_like(pattern: str, stages: Iterable[str], where: str) -> list[str]:
    """The stages a pattern matches, in order; all of them without one.

    Raises ConfigError, naming the nearest, when there are stages and it matches none.

    Example: `stages_like("eval-*", ["rl", "eval-rl"], "run runs/a") == ["eval-rl"]`
    """
    known = sorted(set(stages))
    found = [stage for stage in known if fnmatchcase(stage, pattern or "*")]
    if known and not found:
        close = nearest(pattern, known)
        hint = f"did you mean {close!r}?" if close else f"it has {', '.join(known)}"
        raise ConfigError(f"{where} has no attempt of a stage {pattern!r}; {hint}")
    return found
