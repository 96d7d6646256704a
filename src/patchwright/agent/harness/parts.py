"""What the kits of several harnesses share: node, the launcher of the kit's Python, pinned wheels."""

from __future__ import annotations

import json
from importlib.resources import files

from patchwright.agent.kit import PYTHON, Npm, Plan

__all__ = ["DRIVE", "DRIVER", "LAUNCHER", "NODE", "npm", "python_kit", "text"]


def npm(name: str, version: str, into: str, keep: tuple[str, ...] = ()) -> Npm:
    """A pinned package: its digests are those of `pins/npm.json`."""
    pins = json.loads(text("pins/npm.json"))
    names = {arch: f"{name}@{version}".format(arch=arch) for arch in ("x64", "arm64")}
    digests = {arch: pins[full] for arch, full in names.items() if full in pins}
    return Npm(name=name, version=version, into=into, keep=keep, integrity=digests)


DRIVER = "drive.py"
"""In a kit: our program that runs the agent on one task."""
DRIVE = f'"$KIT/{PYTHON}" -I "$KIT/{DRIVER}"'
"""Starts it with the kit's Python, in a box and outside."""
LAUNCHER = """#!/bin/sh
kit=${0%/bin/python}
exec "$kit/lib/ld.so" --library-path "$kit/lib:$kit/python/lib" "$kit"/python/bin/python3.* "$@"
"""
"""The kit's Python, by the kit's own loader, wherever the kit is; nothing is exported to what it starts."""


def text(path: str) -> str:
    """A file beside this module."""
    return files(__package__).joinpath(path).read_text(encoding="utf-8")


def python_kit(name: str, pythons: tuple[str, ...]) -> Plan:
    """A kit with an interpreter, pinned packages, and the driver `drivers/NAME.py`."""
    return Plan(
        name=name,
        pythons=pythons,
        wheels=tuple(text(f"pins/{name}.txt").split()),
        files={PYTHON: LAUNCHER, DRIVER: text(f"drivers/{name.replace('-', '_')}.py")},
        programs=(PYTHON,),
    )


NODE = npm("node-linux-{arch}", "22.23.3", "node", ("bin/node",))
"""As a program: `$KIT/node/bin/node`."""
