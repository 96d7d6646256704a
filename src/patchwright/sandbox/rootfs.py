"""The file system a namespace box sees: one read-only template, and what each box lays over it.

Standard library only. `build_template` runs once in the fork server and ends with the template as the
root of its mount namespace: the host's files are gone from it, but for the system directories and the
Python environment. `furnish` runs in each box, in its own copy of that mount namespace.
"""

# ruff: noqa: PTH101, PTH102, PTH103, PTH106, PTH110, PTH112, PTH114, PTH115, PTH123, PTH208, PTH211
# Mount points are strings, and a box starts sooner without path objects

from __future__ import annotations

import os
import shutil
import stat

from patchwright.sandbox import mounts, syscalls
from patchwright.sandbox.trees import TreeCopy

HOME = "/home/agent"
SHIMS = "/.patchwright/bin"
"""First on PATH: the programs that are served warm. Where nobody installs anything."""
USER = 1000
"""User and group id inside the box."""

GITCONFIG = """[user]
\tname = agent
\temail = agent@box
[safe]
\tdirectory = *
[init]
\tdefaultBranch = main
[gc]
\tauto = 0
[maintenance]
\tauto = false
"""
"""Commits work without set-up, and nothing goes on in the background."""

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
SYSTEM = (*(f"/{name}" for name in _SYSTEM), "/etc")
"""The folders of the host's system, as boxes see them."""
DEVICES = ("null", "zero", "full", "random", "urandom")
"""What a box has in /dev, beside its own terminals."""
_ETC = (
    "alternatives",
    "ca-certificates.conf",
    "debian_version",
    "java-17-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "pki",
    "protocols",
    "python3",
    "redhat-release",
    "services",
    "ssl",
    "timezone",
)
_WRITTEN = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\n"
    f"agent:x:{USER}:{USER}:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n",
    "group": f"root:x:0:\nagent:x:{USER}:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost box\n::1 localhost\n",
    "resolv.conf": "",
    "hostname": "box\n",
    "gitconfig": GITCONFIG,
}
_OLD = "/oldroot"
_STAGE = "/mnt"
_PRIVATE = {"tmp": "/tmp", "home": HOME, "run": "/run", "shm": "/dev/shm"}
"""Folder of a box's own tmpfs -> where it appears."""
_COPIED = ("work", "home", "tmp", "shm")
"""What a fork takes along: /run is about processes, which it does not."""
_STICKY = ("/tmp", "/dev/shm")


def build_template(prefixes: list[str], programs: dict[str, str]) -> None:
    """Make the template the root of this process's mount namespace, which must be a fresh one.

    `prefixes` are folders bound read-only at their own paths; `programs` are name -> text of the
    scripts in SHIMS. Raises OSError when the kernel refuses a mount.
    """
    sources = {prefix: os.path.realpath(prefix) for prefix in prefixes}
    # Any folder that exists everywhere will do: the mount leaves it again when it becomes the root.
    syscalls.mount("box", "/tmp", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=0755")
    os.mkdir("/tmp" + _OLD)
    syscalls.pivot_root("/tmp", "/tmp" + _OLD)
    os.chdir("/")
    _system_folders()
    for prefix, source in sources.items():
        if not os.path.exists(prefix):  # else below a system directory
            _bind_locked(_OLD + source, prefix)
    _devices()
    _etc()
    _programs(programs)
    for folder in ("/proc", "/sys", "/root", _STAGE, *_PRIVATE.values()):
        os.makedirs(folder, exist_ok=True)
    # A fresh /proc may be mounted in a user namespace only where a whole one can be seen already.
    syscalls.bind(_OLD + "/proc", "/proc")
    syscalls.unmount(_OLD)
    os.rmdir(_OLD)


def furnish(workdir: str, disk_mb: int, prefixes: list[str], clones: mounts.Clones) -> int:
    """Lay a box's own writable folders over the template, inside its own mount namespace.

    One tmpfs of `disk_mb` holds them all, so one bound covers all; `clones` are the folders of the machine
    that it sees besides. `workdir` has passed `check_workdir`. Returns a descriptor of that tmpfs, which is
    a box's files. Raises OSError when the kernel refuses.
    """
    covered = _open_covered(prefixes)
    os.makedirs(workdir, exist_ok=True)  # in the template, which is still writable here
    options = f"mode=0755,size={disk_mb}m,nr_inodes={disk_mb * 256}"
    syscalls.mount("box", _STAGE, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)
    places = dict(_PRIVATE)
    if not any(_within(workdir, place) for place in places.values()):
        places["work"] = workdir
    for name, place in places.items():
        _place(f"{_STAGE}/{name}", place)
    for prefix, fd in covered:
        os.makedirs(prefix, exist_ok=True)
        syscalls.bind(f"/proc/self/fd/{fd}", prefix)
        os.close(fd)
    if "work" not in places:
        os.makedirs(workdir, exist_ok=True)
    if clones:
        root = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        mounts.attach(clones, root)
        os.close(root)
    files = os.open(_STAGE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.unmount(_STAGE)
    _fresh_kernel_mounts()
    return files


def fill(files: int, source: int, user: int) -> None:
    """Copy into the furnished box `files` what another one, `source`, holds; `user` gets what it owned.

    Raises OSError when it does not fit.
    """
    for name in _COPIED:
        try:
            original = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=source)
        except FileNotFoundError:
            continue  # the working directory lies in another folder
        copy = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=files)
        TreeCopy(original, copy, user).run()
        os.close(original)
        os.close(copy)


def own(workdir: str, user: int) -> None:
    """Give the writable folders of a furnished box to `user`."""
    for place in (HOME, "/run", workdir):
        os.chown(place, user, user)


def check_workdir(workdir: str, taken: list[str]) -> None:
    """Raises ValueError when a box in which others have `taken` cannot have its working directory there."""
    if not workdir.startswith("/") or os.path.normpath(workdir) != workdir:
        raise ValueError(f"workdir {workdir!r} must be an absolute path without '..'")
    for path in ["/dev", "/proc", "/sys", *taken]:
        if _within(workdir, path) or _within(path, workdir):
            raise ValueError(f"workdir {workdir!r} collides with {path!r} of the box; choose e.g. '/testbed'")


def _within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _open_covered(prefixes: list[str]) -> list[tuple[str, int]]:
    """Descriptors of the prefixes that a box's own folders will hide, to show them again."""
    hidden = [p for p in prefixes if any(_within(p, place) for place in _PRIVATE.values())]
    return [(prefix, os.open(prefix, os.O_PATH)) for prefix in hidden]


def _place(source: str, target: str) -> None:
    os.mkdir(source)
    if target in _STICKY:
        os.chmod(source, 0o1777)
    syscalls.bind(source, target)


def _fresh_kernel_mounts() -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "/proc", "proc", flags)
    syscalls.mount(
        "devpts", "/dev/pts", "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, "newinstance,ptmxmode=0666"
    )
    sealed = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
    syscalls.mount("", "/", "", sealed | syscalls.MS_NOSUID | syscalls.MS_NODEV)


def _system_folders() -> None:
    for name in _SYSTEM:
        source = f"{_OLD}/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), f"/{name}")
        elif os.path.isdir(source):
            _bind_locked(source, f"/{name}")


def _bind_locked(source: str, target: str) -> None:
    os.makedirs(target, exist_ok=True)
    syscalls.bind(source, target)
    syscalls.lock_down(target)


def _devices() -> None:
    os.mkdir("/dev")
    for name in DEVICES:
        with open(f"/dev/{name}", "xb"):
            pass
        syscalls.bind(f"{_OLD}/dev/{name}", f"/dev/{name}")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    os.mkdir("/dev/pts")
    os.symlink("pts/ptmx", "/dev/ptmx")


def _etc() -> None:
    os.mkdir("/etc")
    for name in _ETC:
        source = f"{_OLD}/etc/{name}"
        if os.path.lexists(source):
            _copy_public(source, f"/etc/{name}")
    for name, text in _WRITTEN.items():
        with open(f"/etc/{name}", "w", encoding="utf-8") as file:
            file.write(text)


def _copy_public(source: str, target: str) -> None:
    """Copy what every user of the host may read; private keys stay behind."""
    mode = os.lstat(source).st_mode
    if stat.S_ISLNK(mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(mode) and mode & stat.S_IROTH:
        shutil.copyfile(source, target)
    elif stat.S_ISDIR(mode) and mode & stat.S_IROTH and mode & stat.S_IXOTH:
        os.mkdir(target)
        for name in os.listdir(source):
            _copy_public(f"{source}/{name}", f"{target}/{name}")


def _programs(programs: dict[str, str]) -> None:
    os.makedirs(SHIMS)
    for name, text in programs.items():
        with open(f"{SHIMS}/{name}", "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(f"{SHIMS}/{name}", 0o755)
