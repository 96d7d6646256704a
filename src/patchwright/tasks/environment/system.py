"""The system an environment stands on: bash, git, a C library. As files of a folder, for a tar.

`host` copies the files of Debian packages that this machine has installed: no network, no root, seconds.
`debian` asks debootstrap for a release of one's choice: network and root, a minute.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from patchwright.errors import ConfigError, ImageError

__all__ = ["debootstrap", "host_files", "host_packages"]

_DPKG = Path("/var/lib/dpkg")
_NEEDED = ("bash", "git", "ca-certificates", "patch", "make", "procps")
_LEFT_OUT = (
    "/usr/share/doc/",
    "/usr/share/man/",
    "/usr/share/locale/",
    "/usr/share/info/",
    "/usr/share/lintian/",
)
_ETC = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/ssl/certs")
"""Made by installing packages, and in no package's list."""
_NAME = re.compile(r"\s*([a-z0-9][a-z0-9.+-]*)")
_DEBOOTSTRAP = 1800.0  # seconds


@dataclass(frozen=True, slots=True)
class _Package:
    essential: bool
    version: str
    depends: tuple[tuple[str, ...], ...]
    """Each a choice of names."""
    provides: tuple[str, ...]


def host_packages(wanted: Iterable[str]) -> dict[str, str]:
    """The installed packages that a system with `wanted` needs, and their versions.

    Raises ConfigError when this machine is no Debian, or lacks one.
    """
    known = _installed()
    provided = {name: owner for owner, package in known.items() for name in package.provides}
    for name in wanted:
        if name not in known and name not in provided:
            raise ConfigError(
                f"base `host` takes Debian packages from this machine, and {name} is not installed; run "
                f"`apt-get install {name}`, or choose base `debian`"
            )
    waiting = [*wanted, *(name for name in _NEEDED if name in known)]
    waiting += [name for name, package in known.items() if package.essential]
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        name = name if name in known else provided.get(name, "")
        if name and name not in found:
            found[name] = known[name].version
            waiting += [_chosen(choice, known, provided) for choice in known[name].depends]
    return dict(sorted(found.items()))


def _chosen(choice: tuple[str, ...], known: Mapping[str, _Package], provided: Mapping[str, str]) -> str:
    return next((name for name in choice if name in known or name in provided), "")


def _installed() -> dict[str, _Package]:
    status = _DPKG / "status"
    if not status.exists():
        raise ConfigError(
            "base `host` copies Debian packages, and this machine has none (no /var/lib/dpkg); "
            "choose base `debian`"
        )
    found = {}
    for paragraph in status.read_text(encoding="utf-8", errors="replace").split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", paragraph, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            found[fields["Package"]] = _package(fields)
    return found


def _package(fields: Mapping[str, str]) -> _Package:
    depends = ",".join(filter(None, (fields.get("Pre-Depends", ""), fields.get("Depends", ""))))
    choices = (tuple(_names(choice, "|")) for choice in depends.split(",") if choice.strip())
    provides = tuple(_names(fields.get("Provides", ""), ","))
    return _Package(fields.get("Essential") == "yes", fields.get("Version", ""), tuple(choices), provides)


def _names(text: str, separator: str) -> Iterator[str]:
    for part in text.split(separator):
        if match := _NAME.match(part):
            yield match[1]


def host_files(packages: Iterable[str]) -> list[Path]:
    """Every file, link and folder of installed packages, under the paths they really have."""
    found: dict[Path, None] = {}
    for link in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if Path(f"/{link}").is_symlink():
            found[Path(f"/{link}")] = None
    for package in packages:
        for name in _listed(package):
            if not name.startswith(_LEFT_OUT) and name != "/.":
                found[_real(name)] = None
    for name in _ETC:
        found.update(dict.fromkeys(_below(Path(name))))
    for folder in ("/usr/bin", "/usr/sbin"):
        found.update(dict.fromkeys(path for path in Path(folder).iterdir() if _is_alternative(path)))
    return [path for path in sorted(found) if os.path.lexists(path)]


def _listed(package: str) -> list[str]:
    matches = [_DPKG / "info" / f"{package}.list", *(_DPKG / "info").glob(f"{package}:*.list")]
    return [line for file in matches if file.exists() for line in file.read_text().splitlines() if line]


def _real(name: str) -> Path:
    """The path with its folders' links followed: `/bin/bash` is a file of `/usr/bin` on most systems."""
    path = Path(name)
    return path.parent.resolve() / path.name


def _is_alternative(path: Path) -> bool:
    """A name such as `which`, made when a package was installed."""
    return path.is_symlink() and str(path.readlink()).startswith("/etc/alternatives/")


def _below(path: Path) -> Iterator[Path]:
    if os.path.lexists(path):
        yield path
    if path.is_dir() and not path.is_symlink():
        for inner in path.iterdir():
            yield from _below(inner)


def debootstrap(suite: str, packages: Iterable[str], folder: Path) -> None:
    """Make a minimal system of a Debian release in `folder`.

    Raises ConfigError when this cannot be done here, ImageError when it fails.
    """
    if os.getuid() != 0:
        raise ConfigError("base `debian` is made by debootstrap, which needs root; choose base `host`")
    if shutil.which("debootstrap") is None:
        raise ConfigError("base `debian` needs debootstrap; run `apt-get install debootstrap`")
    include = ",".join(sorted({*packages, "git", "ca-certificates", "patch", "make", "procps"}))
    command = ["debootstrap", "--variant=minbase", f"--include={include}", suite, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_DEBOOTSTRAP)
    if done.returncode != 0:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise ImageError(f"debootstrap of {suite} failed: {' '.join(last)[:300]}")
    for left in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(folder / left, ignore_errors=True)
