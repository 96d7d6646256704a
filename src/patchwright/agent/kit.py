"""Kits: agent programs with all they need, built once on this machine and shown read-only to every box.

A `Plan` pins what is in a kit. `install` builds it below the user's data folder, absent or complete, in a
folder named after the plan's content, so that another pin is another folder. What is in a kit runs in any
box, whatever its image holds: `kit_build.py` lays the files down and cuts their ties to this machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from patchwright.errors import ConfigError
from patchwright.images.locks import Hold, alone, held
from patchwright.tasks.environment.pythons import Interpreter, find, this_version

__all__ = ["KIT", "PYTHON", "Npm", "Plan", "data_folder", "find_kit", "folder_of", "hold", "install",
           "interpreter"]  # fmt: skip

KIT = "/opt/agent"
"""Where a box sees the kit of its agent."""
PYTHON = "bin/python"
"""In a kit that has one: what starts its interpreter."""
_FORMAT = 1
"""Counts changes of how kits are laid out."""
_FACTS = "kit.json"
_USES = ".uses"
"""Beside the kits: a note for each program that works with one."""
_USES_LOCK = ".uses.lock"
"""Whoever writes or reads the notes has it."""
_MACHINES = {"x86_64": "x64", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Npm:
    """A file of the npm registry. `{arch}` in name and version is `x64` or `arm64`.

    Example: `Npm(name="node-linux-{arch}", version="22.23.3", into="node", integrity={"x64": ...})`
    """

    name: str
    version: str
    into: str
    """Folder of the kit it is unpacked to."""
    integrity: Mapping[str, str]
    """Architecture (`any` for all) -> the digest the registry publishes, checked here."""
    keep: tuple[str, ...] = ()
    """Paths in the package that are kept; all when empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a kit is made of.

    Example: `Plan(name="mini-swe-agent", wheels=("mini-swe-agent==2.4.6", ...), pythons=("",))`
    """

    name: str
    npm: tuple[Npm, ...] = ()
    wheels: tuple[str, ...] = ()
    """Every package by name and version: nothing is resolved, so nothing drifts."""
    pythons: tuple[str, ...] = ()
    """Versions of Python that will do, the best first; an empty one is this program's."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path in the kit -> text of a file of our own."""
    programs: tuple[str, ...] = ()
    """Paths of programs that must be executable."""
    as_is: tuple[str, ...] = ()
    """Programs that may not be changed (they carry data behind their code): they need an image with glibc."""


def data_folder() -> Path:
    """Where kits are kept: `$XDG_DATA_HOME/patchwright/agents`, by default below `~/.local/share`."""
    base = Path(os.environ.get("XDG_DATA_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local/share") / "patchwright/agents"


def interpreter(plan: Plan) -> Interpreter | None:
    """The Python that goes into the kit; None when it needs none. Raises ConfigError when there is none."""
    trouble: ConfigError | None = None
    for version in plan.pythons:
        try:
            return find(version or this_version(), "host")
        except ConfigError as error:
            trouble = trouble or error
    if trouble is not None:
        raise ConfigError(f"agent {plan.name!r}: {trouble}")
    return None


def folder_of(plan: Plan, root: Path | None = None) -> Path:
    """Where the kit of a plan is, or would be. Raises ConfigError where kits cannot be built."""
    python = interpreter(plan)
    digest = _digest({"pin": _pin(plan), "python": python and python.version})
    return (root or data_folder()) / f"{plan.name}-{digest}"


def _pin(plan: Plan) -> str:
    """What the kits of a plan have in common, whatever Python is in them."""
    return _digest({"format": _FORMAT, "machine": machine(), "plan": asdict(plan)})


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def find_kit(plan: Plan, root: Path | None = None) -> Path:
    """The folder of an installed kit. Raises ConfigError when it is not installed."""
    folder = folder_of(plan, root)
    if not (folder / _FACTS).is_file():
        raise ConfigError(
            f"agent {plan.name!r} is not installed; run `patchwright agents install {plan.name}` once"
        )
    return folder


def install(
    plan: Plan, root: Path | None = None, *, say: Callable[[str], None] = lambda _: None
) -> tuple[Path, dict[str, object]]:
    """Build the kit of a plan where it is missing: its folder, and facts about it (`seconds`, `bytes`).

    Kits of other pins of this agent are removed, but for those in use. `say` is told what is being done.
    Killed at any moment, it leaves nothing that counts as a kit.
    Raises ConfigError when what it needs is not on this machine or in the registries.
    """
    from patchwright.agent.kit_build import build

    folder, python = folder_of(plan, root), interpreter(plan)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(folder.parent / f".{plan.name}.lock"):
        if not (folder / _FACTS).is_file():
            beside = folder.with_name(folder.name + ".tmp")
            shutil.rmtree(beside, ignore_errors=True)
            shutil.rmtree(folder, ignore_errors=True)
            started = time.monotonic()
            build(plan, python, beside, say)
            seconds = round(time.monotonic() - started, 1)
            facts = {"seconds": seconds, "bytes": _size(beside), "pin": _pin(plan)}
            (beside / _FACTS).write_text(json.dumps(facts), encoding="utf-8")
            beside.chmod(0o755)
            beside.rename(folder)
        _prune(plan, folder.parent, say)
    return folder, json.loads((folder / _FACTS).read_text(encoding="utf-8"))


def hold(folder: Path) -> Hold | None:
    """Keep a kit from being removed until `release`, or until this program ends; None where kits are
    somebody else's to change."""
    uses = folder.parent / _USES
    try:
        uses.mkdir(exist_ok=True)
        with alone(folder.parent / _USES_LOCK):
            return Hold(uses, [folder.name])
    except OSError:
        return None


def _prune(plan: Plan, root: Path, say: Callable[[str], None]) -> None:
    """Remove the plan's kits of other pins that nobody uses. Call it with the plan's lock."""
    uses = root / _USES
    with alone(root / _USES_LOCK):
        kept = held(uses) if uses.is_dir() else set()
        for folder in root.glob(f"{plan.name}-*"):
            ours = re.fullmatch(r"[0-9a-f]{12}(\.tmp)?", folder.name.removeprefix(f"{plan.name}-"))
            if ours and folder.name not in kept and _pin_of(folder) != _pin(plan):
                say(f"removing {folder.name}, which is of another pin")
                (folder / _FACTS).unlink(missing_ok=True)  # from here on it is no kit
                shutil.rmtree(folder, ignore_errors=True)


def _pin_of(folder: Path) -> str:
    """The pin of a kit; empty where there is none, or it is of a time before pins."""
    try:
        return str(json.loads((folder / _FACTS).read_text(encoding="utf-8"))["pin"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def machine() -> str:
    """This machine's architecture as npm names it. Raises ConfigError where kits cannot be built."""
    arch = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or arch is None or platform.libc_ver()[0] != "glibc":
        raise ConfigError(
            "agent kits are built on Linux with glibc, on x86-64 or arm64, and this is "
            f"{platform.platform()}; build them there, or use the built-in agent"
        )
    return arch


def _size(folder: Path) -> int:
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())
