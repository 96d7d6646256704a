"""The source distribution of a library, from the indexes the user's pip is configured for.

`pip download` cannot be asked for it: to learn an sdist's name it runs the package's build backend, which is
code of the package, outside any box. So pip only says where to look (`pip config list`, which knows files and
environment alike); the index page (PEP 503 HTML or PEP 691 JSON) is read and the file fetched here.
Nothing of the package runs.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import ssl
import subprocess
import sys
import tarfile
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
from packaging.version import InvalidVersion, Version

from patchwright.errors import ConfigError
from patchwright.store.files import attributed, commit

_DEFAULT_INDEX = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"
"""Asks pip for the index it uses when nobody configured one."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_MAX_DOWNLOAD = 100 << 20
_MAX_UNPACKED = 500 << 20
_TIMEOUT = 60.0  # seconds without a byte


@dataclass(frozen=True, slots=True)
class Requirement:
    """A library pinned to a version. Example: `Requirement("iniconfig", "2.1.0")`"""

    name: str
    version: str

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """From `NAME==VERSION`. Raises ConfigError for anything else."""
        match = re.fullmatch(r"\s*([A-Za-z0-9][\w.-]*)\s*==\s*([\w.!+]+)\s*", text)
        if match is None:
            raise ConfigError(f"`{text}` is not NAME==VERSION; write for example `more-itertools==10.7.0`")
        return cls(_canonical(match[1]), match[2])

    def __str__(self) -> str:
        return f"{self.name}-{self.version}"


def fetch_sdist(requirement: Requirement, folder: Path) -> Path:
    """The folder with the library's source, `folder/NAME-VERSION`; fetched and unpacked unless it is there.

    Raises ConfigError when no index has the sdist or it is not a sound archive, StoreError when the disk
    refuses.
    """
    target = folder / str(requirement)
    if target.is_dir():
        return target
    data = _download(requirement)
    with attributed("unpack a library", folder):
        folder.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"{target.name}.tmp")
        _unpack(data, beside, requirement)
        commit(beside, target)
    return target


def fetch_file(requirement: Requirement, folder: Path) -> Path:
    """The library's sdist as a file in `folder`, not unpacked. Raises as `fetch_sdist` does."""
    file = folder / f"{requirement}.tar.gz"
    if not file.exists():
        data = _download(requirement)
        with attributed("keep a source distribution", folder):
            beside = file.with_name(f"{file.name}.tmp")
            beside.write_bytes(data)
            commit(beside, file)
    return file


def releases(name: str) -> list[Requirement]:
    """The releases of a library whose sdist (`.tar.gz`) an index offers, oldest first; no pre-releases.

    Raises ConfigError when the index cannot be read, or offers none.
    """
    wanted = _canonical(name)
    pages = _pages(wanted)
    found: dict[Version, str] = {}
    with _client(pages.options) as client:
        for page in pages.urls:
            for link in _links(client, page):
                version = _sdist_version(link.filename, wanted)
                if version is not None and not version.is_prerelease:
                    found.setdefault(version, _version_text(link.filename))
    if not found:
        raise ConfigError(
            f"no source distribution of {wanted} in {pages}; check the name and pip's index-url"
        )
    return [Requirement(wanted, found[version]) for version in sorted(found)]


# --- where to look ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Link:
    filename: str
    url: str
    sha256: str = ""


def _pip_options() -> Mapping[str, str]:
    """pip's options as it would use them for a download: environment over command over global."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ConfigError(f"`pip config list` does not work ({done.stderr.strip()[-200:]}); install pip")
    found = {}
    for line in done.stdout.splitlines():
        key, equals, value = line.partition("=")
        section, _, name = key.rpartition(".")
        if equals:
            found[section, name] = str(ast.literal_eval(value))
    order = ("global", "download", ":env:")
    return {name: value for wanted in order for (section, name), value in found.items() if section == wanted}


def _default_index() -> str:
    done = subprocess.run([sys.executable, "-c", _DEFAULT_INDEX], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        raise ConfigError("pip names no package index; set one with `pip config set global.index-url URL`")
    return done.stdout.strip()


@dataclass(frozen=True, slots=True)
class _Pages:
    """Where pip's options say that a library's files are listed."""

    options: Mapping[str, str]
    indexes: tuple[str, ...]
    urls: tuple[str, ...]

    def __str__(self) -> str:
        return ", ".join(map(_without_password, self.indexes)) or "pip's find-links"


def _pages(name: str) -> _Pages:
    options = _pip_options()
    indexes = [] if "no-index" in options else [options.get("index-url") or _default_index()]
    indexes += options.get("extra-index-url", "").split()
    urls = [*options.get("find-links", "").split(), *(f"{index.rstrip('/')}/{name}/" for index in indexes)]
    return _Pages(options, tuple(indexes), tuple(urls))


def _download(requirement: Requirement) -> bytes:
    pages = _pages(requirement.name)
    with _client(pages.options) as client:
        for page in pages.urls:
            for link in _links(client, page):
                if _is_sdist(link.filename, requirement):
                    return _checked(link, _read(client, link.url) or b"")
    raise ConfigError(
        f"no source distribution of {requirement} in {pages}; check name, version and index-url"
    )


def _client(options: Mapping[str, str]) -> httpx.Client:
    context = ssl.create_default_context(cafile=options["cert"]) if "cert" in options else True
    return httpx.Client(verify=context, proxy=options.get("proxy"), timeout=_TIMEOUT, follow_redirects=True)


def _is_sdist(filename: str, requirement: Requirement) -> bool:
    stem = filename.removesuffix(".tar.gz")
    name, _, version = stem.rpartition("-")
    return stem != filename and version == requirement.version and _canonical(name) == requirement.name


def _version_text(filename: str) -> str:
    return filename.removesuffix(".tar.gz").rpartition("-")[2]


def _sdist_version(filename: str, name: str) -> Version | None:
    try:
        version = Version(_version_text(filename))
    except InvalidVersion:
        return None
    return version if _is_sdist(filename, Requirement(name, _version_text(filename))) else None


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- reading ----------------------------------------------------------------------------------


def _links(client: httpx.Client, page: str) -> Iterator[_Link]:
    """The files a page or a folder offers; none when there is no such page."""
    local = _local(page)
    if local is not None and local.is_dir() and not (local / "index.html").exists():
        yield from (_Link(path.name, path.as_uri()) for path in sorted(local.iterdir()))
        return
    url = (local / "index.html" if local.is_dir() else local).as_uri() if local is not None else page
    body = _read(client, url)
    if body is not None:
        yield from _json_links(body, page) if body.lstrip().startswith(b"{") else _html_links(body, url)


def _local(page: str) -> Path | None:
    if page.startswith("file:"):
        return Path(urllib.request.url2pathname(urllib.parse.urlsplit(page).path))
    return None if "://" in page else Path(page).absolute()


def _read(client: httpx.Client, url: str) -> bytes | None:
    """The content, or None when there is none at that address. Raises ConfigError when it cannot be had."""
    local = _local(url)
    if local is not None:
        return local.read_bytes() if local.is_file() else None
    shown = _without_password(url)
    try:
        with client.stream("GET", url, headers={"Accept": _ACCEPT}) as response:
            if response.status_code == 404:
                return None
            response.raise_for_status()
            return _bounded(response, shown)
    except httpx.HTTPStatusError as error:
        raise ConfigError(f"{shown} answers {error.response.status_code}; check pip's index-url") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(
            f"{shown} cannot be read: {error or type(error).__name__}; check the network"
        ) from None


def _bounded(response: httpx.Response, shown: str) -> bytes:
    data = bytearray()
    for piece in response.iter_bytes():
        data += piece
        if len(data) > _MAX_DOWNLOAD:
            raise ConfigError(f"{shown} is larger than {_MAX_DOWNLOAD >> 20} MiB; choose a smaller library")
    return bytes(data)


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def _json_links(body: bytes, page: str) -> Iterator[_Link]:
    try:
        found: Any = httpx.Response(200, content=body).json()
        for file in found["files"]:
            url = urllib.parse.urljoin(page, file["url"])
            yield _Link(file["filename"], url, file.get("hashes", {}).get("sha256", ""))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{_without_password(page)} is not an index page: {error!r}") from None


def _html_links(body: bytes, page: str) -> Iterator[_Link]:
    anchors = _Anchors()
    anchors.feed(body.decode("utf-8", "replace"))
    for address in anchors.found:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(page, address))
        filename = PurePosixPath(urllib.parse.unquote(parts.path)).name
        digest = urllib.parse.parse_qs(parts.fragment).get("sha256", [""])[0]
        yield _Link(filename, parts._replace(fragment="").geturl(), digest)


class _Anchors(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _checked(link: _Link, data: bytes) -> bytes:
    shown = _without_password(link.url)
    if not data:
        raise ConfigError(f"{shown} is named by the index, but is not there")
    if link.sha256 and hashlib.sha256(data).hexdigest() != link.sha256:
        raise ConfigError(f"{shown} does not have the sha256 the index names; fetch again or ask who runs it")
    return data


# --- unpacking --------------------------------------------------------------------------------


def _unpack(data: bytes, into: Path, requirement: Requirement) -> None:
    """Unpack what is below the archive's single top folder; nothing leads out of `into`."""
    into.mkdir(parents=True)
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
            members = list(_members(tar))
            tar.extractall(into, members=members, filter="data")
    except (tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise ConfigError(
            f"the source distribution of {requirement} is not a sound tar file: {error}"
        ) from None
    if not members:
        raise ConfigError(f"the sdist of {requirement} is empty; take another version")


def _members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    size = 0
    for member in tar:
        size += member.size
        if size > _MAX_UNPACKED:
            raise ValueError(f"it unpacks to more than {_MAX_UNPACKED >> 20} MiB")
        _, _, rest = member.name.removeprefix("./").partition("/")
        if rest and (member.isreg() or member.isdir()):
            yield member.replace(name=rest, deep=False)
