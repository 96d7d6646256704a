"""Builds an environment: base system, interpreter, packages, repository; each a layer of the store.

What is installed runs its own code, so it runs in a box: closed, with the packages laid into it. What came
into being there is the layer. The result is an image of the store, so namespace boxes stack its folders, and
an archive of it is an image of Docker.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import shlex
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from patchwright.errors import ConfigError, ImageError
from patchwright.images.names import Name
from patchwright.images.store import Image, Store
from patchwright.sandbox.base import BoxSpec, Sandbox, SandboxBackend
from patchwright.tasks.environment.layers import Layers, key_of, write_files
from patchwright.tasks.environment.pythons import Interpreter, find, libraries, this_suite
from patchwright.tasks.environment.recipe import Recipe
from patchwright.tasks.environment.system import debootstrap, host_files, host_packages
from patchwright.tasks.environment.wheels import Wheelhouse, build_requires
from patchwright.types import Limits

__all__ = ["Builder", "Repository"]

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WHEELS, _WORKDIR = "/opt/patchwright/wheels", "/testbed"
_PART = 48 << 20
"""A box gives files of at most 64 MiB."""
_LIMITS = Limits(exec_seconds=1800, memory_mb=8192, processes=1024, disk_mb=16384)
_PIP = {
    "PIP_NO_INDEX": "1",
    "PIP_FIND_LINKS": _WHEELS,
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "PIP_NO_CACHE_DIR": "1",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
}
"""Stays in the image: evaluation scripts install the repository again, and there is no network."""
_CONDA = 'export PATH="{path}:$PATH"\nconda() {{ :; }}\n'
"""Official evaluation scripts activate an environment of conda's; here there is one, always on."""
_CHANGED = (
    "find / -xdev \\( -path /tmp -o -path /proc -o -path /dev -o -path /sys -o -path /run "
    "-o -path /root/.cache \\) -prune -o \\( -type f -o -type l -o -type d -empty \\) "
    "-newercm /tmp/.started -print0"
)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that is laid into an environment at `/testbed` and installed there.

    Example: `Repository(tar, project=Path("pyproject.toml").read_text())`
    """

    archive: bytes
    """A tar of its work tree and `.git`."""
    project: str | None = None
    """The text of its `pyproject.toml`: what it is built with."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Builds environments into a store. `say` is told what goes on.

    Example: `image = await Builder(store, NamespaceBackend(), print)(Recipe(pip=("pytest",)))`
    """

    store: Store
    backend: SandboxBackend
    say: Callable[[str], object]

    async def __call__(self, recipe: Recipe, repository: Repository | None = None) -> Image:
        """The environment's image, built unless there is an equal one.

        Raises ConfigError when Python, Debian packages or requirements cannot be had, ImageError when the
        installation fails, SandboxError when there is no box.
        """
        interpreter = find(recipe.python, recipe.base)
        ground = await self._ground(recipe, interpreter)
        told = hashlib.sha256(repository.archive).hexdigest() if repository else ""
        key = key_of(ground.name, recipe.pip, recipe.pre_install, recipe.install, told)
        layers = Layers(self.store)
        if (known := layers.known("env", key)) is not None:
            return known
        packages = await self._packages(recipe, interpreter, ground, layers)
        if repository is None and not recipe.install and not recipe.pre_install:
            return packages
        self.say("installing the repository")
        building = build_requires(repository.project if repository else None)
        root = self._root(packages)
        async with self._box(root, interpreter, (), building) as box:
            await _lay(box, repository)
            for line in (*recipe.pre_install, *recipe.install, *_SEAL):
                await _run(box, line, _WORKDIR)
            tar = await _changed(box)
        return await layers.step("env", key, packages, _writer(tar), _env(interpreter))

    async def _ground(self, recipe: Recipe, interpreter: Interpreter) -> Image:
        """Base system and interpreter."""
        layers = Layers(self.store)
        if recipe.base == "host":
            base = await self._host(recipe, interpreter, layers)
        else:
            base = await self._debian(recipe, interpreter, layers)
        key = key_of(base.name, interpreter.program, str(interpreter.prefix and _stamp(interpreter.prefix)))
        lower = self.store.layer(base.layers[0])
        write = lambda tar: _write_python(tar, interpreter, lower)  # noqa: E731
        return await layers.step("python", key, base, write, _env(interpreter))

    async def _host(self, recipe: Recipe, interpreter: Interpreter, layers: Layers) -> Image:
        python = [] if interpreter.prefix else [f"python{interpreter.version}", "python3"]
        packages = host_packages([*recipe.apt, *python])
        self.say(f"base: {len(packages)} Debian packages of this machine")
        write = lambda tar: write_files(tar, host_files(packages))  # noqa: E731
        return await layers.step("base", key_of("host", packages), None, write, {"PATH": _SYSTEM_PATH})

    async def _debian(self, recipe: Recipe, interpreter: Interpreter, layers: Layers) -> Image:
        suite = interpreter.suite or this_suite()
        if not suite:
            raise ConfigError("this machine is no Debian, so its Pythons cannot stand on base `debian`")
        extra = ("python3-distutils",) if suite in ("bullseye", "bookworm") else ()
        python = () if interpreter.prefix else ("python3", *extra)
        wanted = sorted({*recipe.apt, *python})
        self.say(f"base: Debian {suite}")

        def write(tar: Path) -> None:
            with tempfile.TemporaryDirectory(dir=tar.parent) as scratch:
                folder = Path(scratch) / "root"
                debootstrap(suite, wanted, folder)
                write_files(tar, sorted(folder.rglob("*")), folder)

        return await layers.step("base", key_of("debian", suite, wanted), None, write, {"PATH": _SYSTEM_PATH})

    async def _packages(
        self, recipe: Recipe, interpreter: Interpreter, ground: Image, layers: Layers
    ) -> Image:
        key = key_of(ground.name, recipe.pip)
        if (known := layers.known("packages", key)) is not None:
            return known
        self.say(f"packages: {len(recipe.pip)} requirements for Python {interpreter.version}")
        async with self._box(self._root(ground), interpreter, recipe.pip, ()) as box:
            await _run(box, _START, "/")
            await _run(box, _pip_install(interpreter, recipe.pip), "/")
            tar = await _changed(box)
        return await layers.step("packages", key, ground, _writer(tar), _env(interpreter))

    def _root(self, image: Image) -> str:
        return self.store.resolve(Name.parse(image.name)).image

    @asynccontextmanager
    async def _box(
        self, root: str, interpreter: Interpreter, requirements: Sequence[str], building: Sequence[str]
    ) -> AsyncIterator[Sandbox]:
        """A box with the packages laid into it."""
        with tempfile.TemporaryDirectory() as scratch:
            house = Wheelhouse(Path(scratch), interpreter)
            await asyncio.to_thread(house.fetch, requirements, building)
            wheels = await asyncio.to_thread(_folder_tar, Path(scratch))
        spec = BoxSpec(image=root, workdir=_WHEELS, archive=wheels, limits=_LIMITS, env=_env(interpreter))
        box = await self.backend.open(spec)
        try:
            yield box
        finally:
            await box.close()


_START = "touch /tmp/.started && sleep 0.01"
"""What comes into being after this is the layer's."""
_SEAL = (
    "if [ -d .git ] && [ -n \"$(git status --porcelain -uno)\" ]; then git commit -qam 'Environment'; fi",
)
"""What `pre_install` changed is no patch of anybody's."""


def _env(interpreter: Interpreter) -> dict[str, str]:
    path = f"{interpreter.prefix}/bin:{_SYSTEM_PATH}" if interpreter.prefix else _SYSTEM_PATH
    return {"PATH": path, "LANG": "C.UTF-8", **_PIP}


def _pip_install(interpreter: Interpreter, requirements: Sequence[str]) -> str:
    """pip installs itself from its wheel, then the rest; pins that clash are taken as they are."""
    python = interpreter.program
    tools = f'{python} "$(echo {_WHEELS}/pip-*.whl)"/pip install --quiet pip setuptools wheel'
    if not requirements:
        return tools
    names = " ".join(map(shlex.quote, requirements))
    install = f"{python} -m pip install --quiet {names}"
    alone = (
        " || ".join([install, f"{install} --no-deps"])
        if all("==" in one for one in requirements)
        else install
    )
    return f"{tools} && {{ {alone}; }}"


async def _lay(box: Sandbox, repository: Repository | None) -> None:
    """Start the clock, and put the repository where tasks have it."""
    await _run(box, f"{_START} && touch {_WHEELS}/* && mkdir -p {_WORKDIR}", "/")
    if repository is None:
        return
    packed = zlib.compress(repository.archive, 1)
    unpack = "import sys, zlib; sys.stdout.buffer.write(zlib.decompress(sys.stdin.buffer.read()))"
    done = await box.exec(f"python3 -c {shlex.quote(unpack)} | tar x -C {_WORKDIR}", cwd="/", stdin=packed)
    if done.code != 0:
        raise ImageError(f"the repository cannot be laid into the environment: {done.output[-300:].strip()}")
    await _run(box, "[ ! -d .git ] || git reset --quiet", _WORKDIR)  # its index knows of the files' times


async def _run(box: Sandbox, line: str, where: str) -> None:
    done = await box.exec(line, cwd=where)
    if done.code != 0:
        last = " ".join(done.output.strip().splitlines()[-4:])
        raise ImageError(f"`{line[:200]}` failed with {done.code} in the environment: {last[-600:]}")


async def _changed(box: Sandbox) -> bytes:
    """A tar of the files that came into being in a box."""
    pack = f"{_CHANGED} | tar -c -P --null -T - | split -b {_PART} - /tmp/.layer-"
    await _run(box, f"set -o pipefail; {pack}", "/")
    listed = await box.exec("ls /tmp/.layer-*", cwd="/")
    return b"".join([await box.read(name) for name in listed.output.split()])


def _writer(data: bytes) -> Callable[[Path], object]:
    return lambda tar: tar.write_bytes(data)


def _folder_tar(folder: Path) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name)
    return out.getvalue()


# --- the interpreter --------------------------------------------------------------------------


def _stamp(prefix: Path) -> str:
    """Changes when another interpreter is installed at the same place."""
    return f"{prefix} {(prefix / 'bin').stat().st_mtime_ns}"


def _write_python(tar: Path, interpreter: Interpreter, base: Path) -> None:
    """The interpreter without what was installed into it, the libraries the base lacks, and `python`."""
    with tarfile.open(tar, "w", format=tarfile.PAX_FORMAT) as out:
        if interpreter.prefix:
            _add_prefix(out, interpreter.prefix)
            _add_libraries(out, interpreter.prefix, base)
        for name in ("python", "python3"):
            _add_link(out, f"usr/local/bin/{name}", interpreter.program)
        folder = f"{interpreter.prefix}/bin" if interpreter.prefix else "/usr/bin"
        _add_text(out, "opt/miniconda3/bin/activate", _CONDA.format(path=folder))


def _add_prefix(out: tarfile.TarFile, prefix: Path) -> None:
    keep = f"{prefix}/lib"
    unwanted = ("/site-packages/", "/test/", "/idlelib/", "/share/man/", "/share/doc/")

    def wanted(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        path = f"/{member.name}/"
        inside = path.startswith(keep) and any(part in path for part in unwanted)
        return None if inside or _is_script(path, prefix) else member

    out.add(prefix, prefix.as_posix().lstrip("/"), filter=wanted)


def _is_script(path: str, prefix: Path) -> bool:
    """Whether it is a program of a package that is left out, as pytest's in `bin` is."""
    file = Path(path)
    if file.parent != prefix / "bin" or not file.is_file() or file.is_symlink():
        return False
    with file.open("rb") as opened:
        return opened.read(2) == b"#!" and not file.name.startswith(("python", "2to3", "idle", "pydoc"))


def _add_libraries(out: tarfile.TarFile, prefix: Path, base: Path) -> None:
    for name in libraries(prefix):
        real = Path(name).resolve()
        place = Path(name).parent.resolve() / Path(name).name
        if not (base / str(place).lstrip("/")).exists() and real.is_file():
            out.add(real, str(real).lstrip("/"), recursive=False)
            if place != real:
                _add_link(out, str(place).lstrip("/"), str(real))


def _add_link(out: tarfile.TarFile, name: str, target: str) -> None:
    link = tarfile.TarInfo(name)
    link.type, link.linkname = tarfile.SYMTYPE, target
    out.addfile(link)


def _add_text(out: tarfile.TarFile, name: str, text: str) -> None:
    member = tarfile.TarInfo(name)
    data = text.encode()
    member.size, member.mode = len(data), 0o755
    out.addfile(member, io.BytesIO(data))
