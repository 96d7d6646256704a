"""The settings of this machine's kernel that keep programs from making namespace boxes, and their mends."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_SYSCTL = Path("/proc/sys")
_NONE = "user.max_user_namespaces"
_SWITCH = "kernel.unprivileged_userns_clone"
_APPARMOR = "kernel.apparmor_restrict_unprivileged_userns"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """One setting in the way. Example: `Obstacle("user.max_user_namespaces is 0", "run `sysctl ...`")`"""

    what: str
    mend: str


def obstacles(*, root: bool | None = None, sysctl: Path = _SYSCTL) -> list[Obstacle]:
    """What is in the way of namespace boxes of `root`, or else of an ordinary user; by default, of this one.

    `sysctl` is the folder of the settings. The empty list does not promise boxes: a container's own rules
    are not written anywhere.
    """
    if os.geteuid() != 0 if root is None else not root:
        return [*_for_all(sysctl), *_for_ordinary_users(sysctl)]
    return _for_all(sysctl)


def _for_all(sysctl: Path) -> list[Obstacle]:
    if _value(sysctl, _NONE) != 0:
        return []
    return [Obstacle(f"{_NONE} is 0", f"run `sysctl -w {_NONE}=15000` as root")]


def _for_ordinary_users(sysctl: Path) -> list[Obstacle]:
    found = []
    if _value(sysctl, _SWITCH) == 0:
        found.append(Obstacle(f"{_SWITCH} is 0", f"run `sysctl -w {_SWITCH}=1` as root"))
    if _value(sysctl, _APPARMOR) == 1:
        mend = (
            f"run `sysctl -w {_APPARMOR}=0` as root, or give this Python an AppArmor profile with `userns,`"
        )
        found.append(Obstacle(f"{_APPARMOR} is 1", mend))
    return found


def _value(sysctl: Path, name: str) -> int | None:
    """A setting; None where this kernel has no such, or its value is no number."""
    try:
        return int((sysctl / name.replace(".", "/", 1)).read_text("ascii"))
    except (OSError, ValueError):
        return None
