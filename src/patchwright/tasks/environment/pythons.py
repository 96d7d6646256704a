"""Where interpreters of a version can be had on this machine, and which Debian release has which.

There is no other place: builds of Python are not on the package index, and Debian has one version a release.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from patchwright.errors import ConfigError

__all__ = ["SUITES", "Interpreter", "find", "libraries", "this_suite", "this_version"]

SUITES = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
"""Debian release -> its Python."""
_PLACES = ("~/.pyenv/versions", "~/.local/share/uv/python", "/opt/python", "/opt")


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can be laid into an environment.

    Example: `Interpreter("3.9", Path("/root/.pyenv/versions/3.9.18"), "")`
    """

    version: str
    prefix: Path | None
    """Its own folder, which is copied; None: the Debian release's."""
    suite: str
    """The Debian release that it comes from, or runs on."""

    @property
    def program(self) -> str:
        """What starts it, in the environment, and for a prefix on this machine too."""
        folder = f"{self.prefix}/bin" if self.prefix else "/usr/bin"
        return f"{folder}/python{self.version}"


def this_version() -> str:
    """The version of the Python that runs this."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def this_suite() -> str:
    """The name of this machine's Debian release; empty where it is none."""
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return release.get("VERSION_CODENAME", "") if release.get("ID") == "debian" else ""


def find(version: str, base: str) -> Interpreter:
    """An interpreter of `version` (empty: this program's) for a base. Raises ConfigError without one."""
    wanted = version or this_version()
    own = [suite for suite, python in SUITES.items() if python == wanted]
    if base == "debian" and own:
        return Interpreter(wanted, None, own[0])
    prefix = next(_prefixes(wanted), None)
    if prefix is not None:
        return Interpreter(wanted, prefix, this_suite())
    if base == "host" and Path(f"/usr/bin/python{wanted}").exists():
        return Interpreter(wanted, None, this_suite())
    here = sorted({*_versions()}, key=lambda one: [int(part) for part in one.split(".")])
    debian = ", ".join(f"{python} ({suite})" for suite, python in SUITES.items())
    raise ConfigError(
        f"there is no Python {wanted} to be had: this machine has {', '.join(here)}, and base `debian` has "
        f"{debian}; install {wanted} with pyenv or uv, or choose one of these"
    )


def _prefixes(version: str) -> Iterator[Path]:
    """Folders that hold a whole interpreter of that version: this program's, then those beside it (pyenv and
    uv keep theirs so), then those of the usual places."""
    own = Path(sys.base_prefix)
    candidates = [own]
    for place in (own.parent, *map(Path, _PLACES)):
        folder = place.expanduser()
        candidates += sorted(folder.iterdir(), reverse=True) if folder.is_dir() else []
    for prefix in candidates:
        real = prefix / "bin" / f"python{version}"
        if prefix != Path("/usr") and real.exists() and (prefix / f"lib/python{version}/os.py").exists():
            yield prefix.resolve()


def _versions() -> Iterator[str]:
    for minor in range(6, 20):
        if next(_prefixes(f"3.{minor}"), None) or shutil.which(f"python3.{minor}", path="/usr/bin"):
            yield f"3.{minor}"


def libraries(prefix: Path) -> list[str]:
    """The shared libraries of the system that an interpreter and its modules need, by path."""
    programs = [*prefix.glob("bin/python3.*"), *prefix.rglob("lib-dynload/*.so"), *prefix.glob("lib/*.so*")]
    files = [str(path) for path in programs if path.is_file() and not path.is_symlink()]
    env = {**os.environ, "LD_LIBRARY_PATH": str(prefix / "lib")}
    done = subprocess.run(["ldd", *files], capture_output=True, text=True, env=env, timeout=120)
    found = (line.partition("=>")[2].partition("(")[0].strip() for line in done.stdout.splitlines())
    return sorted({path for path in found if path.startswith("/") and not path.startswith(f"{prefix}/")})
