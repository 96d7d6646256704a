"""What is installed and stored: versions, Docker, images, tokens."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import httpx
from packaging.requirements import Requirement

from patchwright import __version__
from patchwright.errors import ConfigError, StoreError
from patchwright.fleet.tokens import NODE_TOKEN, POOL_TOKEN, config_folder, read_token
from patchwright.images.config import ImagesConfig, parse_bytes
from patchwright.images.store import Store
from patchwright.recipes.doctor.finding import Finding
from patchwright.sandbox.docker_api import engine_socket

__all__ = ["docker", "look", "misfits"]


def look(images: ImagesConfig, *, torch: bool, ray: bool = False) -> list[Finding]:
    """Every finding but Docker's; whether `torch` is needed depends on the engine, `ray` on the cluster."""
    packages = [_package(name, needed=torch) for name in ("torch", "transformers")]
    return [_versions(torch=torch), *packages, _ray(needed=ray), _images(images), _tokens()]


def _versions(*, torch: bool) -> Finding:
    """Needed is what the program itself, and its engine, import; a misfit of another extra only warns."""
    try:
        wanted = importlib.metadata.requires("patchwright") or []
    except importlib.metadata.PackageNotFoundError:
        mend = "install the package (`pip install -e .` in its folder), so that its requirements are known"
        return Finding(name="versions", ok=False, detail="patchwright is not installed", mend=mend)
    every = [Requirement(text) for text in wanted]
    wrong = misfits(every)
    if wrong:
        needed = bool(misfits([one for one in every if _is_of(one, "local" if torch else "")]))
        mend = "pip install " + " ".join(f"'{need}'" for need, _ in wrong)
        detail = ", ".join(f"{need} is {have or 'missing'}" for need, have in wrong)
        return Finding(name="versions", ok=False, detail=detail, mend=mend, needed=needed)
    detail = f"patchwright {__version__}, and every package of it that is installed fits"
    return Finding(name="versions", ok=True, detail=detail)


def _is_of(requirement: Requirement, extra: str) -> bool:
    """Whether the package itself or this extra requires it."""
    marker = requirement.marker
    return marker is None or marker.evaluate({"extra": ""}) or marker.evaluate({"extra": extra})


def misfits(wanted: Sequence[Requirement]) -> list[tuple[str, str]]:
    """(requirement, version there) of what is missing or too old or new; extras that are not there are no
    fault. Example: `misfits([Requirement("rich>=99")]) == [("rich>=99", "14.0.0")]`"""
    found = []
    for one in wanted:
        extra = one.marker is not None and not one.marker.evaluate({"extra": ""})
        try:
            have = importlib.metadata.version(one.name)
        except importlib.metadata.PackageNotFoundError:
            have = ""
        if (not have and not extra) or (have and not one.specifier.contains(have, prereleases=True)):
            found.append((f"{one.name}{one.specifier}", have))
    return list(dict.fromkeys(found))


def _package(name: str, *, needed: bool) -> Finding:
    try:
        return Finding(name=name, ok=True, detail=importlib.metadata.version(name), needed=needed)
    except importlib.metadata.PackageNotFoundError:
        detail = "not installed; training and the local engine need it"
        mend = "pip install 'patchwright[local]'"
        return Finding(name=name, ok=False, detail=detail, mend=mend, needed=needed)


def _ray(*, needed: bool) -> Finding:
    with suppress(importlib.metadata.PackageNotFoundError):
        if importlib.util.find_spec("ray") is not None:
            return Finding(name="ray", ok=True, detail=importlib.metadata.version("ray"), needed=needed)
    mend = "only for `[cluster] use = \"ray\"`: pip install 'patchwright[ray]'"
    return Finding(name="ray", ok=False, detail="not installed", mend=mend, needed=needed)


def docker(*, needed: bool) -> Finding:
    """Whether a Docker or Podman socket answers."""
    mend = "only for docker boxes: start Docker or Podman's socket, join its group, or set DOCKER_HOST"
    try:
        path = engine_socket()
        with httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=2) as client:
            found = client.get("http://docker/version").json()
        names = [part["Name"] for part in found.get("Components") or ()]
        name = "Podman" if any("Podman" in one for one in names) else "Docker"
        return Finding(name="docker", ok=True, detail=f"{name} {found['Version']} at {path}", needed=needed)
    except ConfigError as error:
        return Finding(name="docker", ok=False, detail=str(error), mend=mend, needed=needed)
    except (httpx.HTTPError, ValueError, KeyError, AttributeError) as error:
        return Finding(name="docker", ok=False, detail=f"{path}: {error}", mend=mend, needed=needed)


def _images(config: ImagesConfig) -> Finding:
    """The store of namespace images; it is not made here."""
    folder = Path(config.store).expanduser()
    if not folder.exists():
        detail = f"none yet; `patchwright images pull` puts them into {folder}"
        return Finding(name="images", ok=True, detail=detail, needed=False)
    try:
        store = Store(folder)
        count, taken, budget = len(store.images()), store.bytes(), parse_bytes(config.budget)
    except (StoreError, ConfigError) as error:
        mend = "name another folder: `line.sandbox.images.store`"
        return Finding(name="images", ok=False, detail=str(error), mend=mend, needed=False)
    free = shutil.disk_usage(folder).free
    detail = f"{count} images, {taken / 1e9:.1f} GB in {folder}, {free / 1e9:.1f} GB free there"
    full = count > 0 and budget is not None and budget - taken > free
    mend = f"the budget {config.budget} is more than the disk holds: lower it, or `patchwright images prune`"
    return Finding(name="images", ok=not full, detail=detail, mend=mend, needed=False)


def _tokens() -> Finding:
    """The token files of this user's node and pool: for their owner's eyes only."""
    files = [file for name in (NODE_TOKEN, POOL_TOKEN) if (file := config_folder() / name).exists()]
    for file in files:
        try:
            read_token(file)
        except ConfigError as error:
            return Finding(name="tokens", ok=False, detail=str(error), mend=f"remove {file}", needed=False)
        if file.stat().st_mode & 0o077:
            detail = f"others can read {file}: whoever has it runs commands here"
            mend = f"chmod 600 {file}, and a new token if others are on this machine"
            return Finding(name="tokens", ok=False, detail=detail, mend=mend, needed=False)
    names = ", ".join(file.name for file in files)
    detail = f"{names} in {config_folder()}" if files else "none yet; node and pool make theirs"
    return Finding(name="tokens", ok=True, detail=detail, needed=False)
