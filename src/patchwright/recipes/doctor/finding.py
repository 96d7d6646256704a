"""What a look at the machine found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing looked at. Example: `Finding(name="disk", ok=True, detail="31 GB free")`"""

    name: str
    ok: bool
    detail: str
    mend: str = ""
    """What to do about it, when it is not ok."""
    needed: bool = True
    """Whether nothing can run without it, as the machine is to be used."""
