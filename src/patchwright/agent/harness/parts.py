"""What the kits of several harnesses share: node, the launcher of the kit's Python, pinned wheels."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files

from patchwright.agent.command import FOLDER
from patchwright.agent.kit import Npm

__all__ = ["DRIVE", "LAUNCHER", "NODE", "driver", "npm", "text", "wheels"]


def npm(name: str, version: str, into: str, keep: tuple[str, ...] = ()) -> Npm:
    """A pinned package: its digests are those of `pins/npm.json`."""
    pins = json.loads(text("pins/npm.json"))
    names = {arch: f"{name}@{version}".format(arch=arch) for arch in ("x64", "arm64")}
    digests = {arch: pins[full] for arch, full in names.items() if full in pins}
    return Npm(name=name, version=version, into=into, keep=keep, integrity=digests)


DRIVE = '"$KIT/bin/python" -I "$OUT/drive.py"'
"""Starts a driver with the kit's Python, in a box and outside."""
LAUNCHER = {
    "bin/python": """#!/bin/sh
kit=${0%/bin/python}
exec "$kit/lib/ld.so" --library-path "$kit/lib:$kit/python/lib" "$kit"/python/bin/python3.* "$@"
"""
}
"""Starts it by the kit's own loader, wherever the kit is; nothing is exported to what it starts."""


def text(path: str) -> str:
    """A file beside this module."""
    return files(__package__).joinpath(path).read_text(encoding="utf-8")


def driver(name: str) -> Mapping[str, str]:
    """One of our programs, as a file of the home it runs in: `DRIVE` starts it."""
    return {f"{FOLDER}/drive.py": text(f"drivers/{name}.py")}


def wheels(name: str) -> tuple[str, ...]:
    """The packages of a kit, every one pinned."""
    return tuple(text(f"pins/{name}.txt").split())


NODE = npm("node-linux-{arch}", "22.23.3", "node", ("bin/node",))
"""As a program: `$KIT/node/bin/node`."""
