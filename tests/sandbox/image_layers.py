"""Unpacked folders of a small image, made of this machine's own programs."""

import os
import re
import shutil
import subprocess
from pathlib import Path

PROGRAMS = (
    "bash",
    "cat",
    "ls",
    "rm",
    "mkdir",
    "head",
    "wc",
    "stat",
    "id",
    "mv",
    "ln",
    "sleep",
    "grep",
    "touch",
)


def put_program(root, name):
    """Copy a program into `root` with the libraries it is linked to."""
    program = shutil.which(name)
    found = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for path in [program, *re.findall(r"(/\S+) \(0x", found)]:
        target = root / ("bin" if path == program else "") / (name if path == program else path[1:])
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            shutil.copy(path, target)


def two_layers(folder):
    """Two layers: the programs, and over them one that removes a file and an inherited folder."""
    for parent in (folder, *folder.parents):
        if parent == Path("/tmp"):
            break
        parent.chmod(0o755)
    base, top = folder / "base, with a comma", folder / "top"
    for name in PROGRAMS:
        put_program(base, name)
    for name in ("etc", "tmp", "srv/old", "root"):
        (base / name).mkdir(parents=True)
    (base / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (base / "etc/base").write_text("base\n")
    (base / "etc/removed").write_text("base\n")
    (base / "srv/old/inherited").write_text("base\n")
    (base / "private").mkdir(mode=0o700)
    (base / "private/file").write_text("owned\n")
    (top / "etc").mkdir(parents=True)
    (top / "etc/top").write_text("top\n")
    os.mknod(top / "etc/removed", 0o020600, 0)
    return f"{top}:{base}"
