"""What runs in boxes that are not forked here: modules of this package, as a zip to import from."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["bundled"]


def bundled(modules: Sequence[str], *, start: str = "") -> bytes:
    """These modules, which import nothing but each other and the standard library, below their own package's
    name. With `start`, a program, it is one that `python3 FILE.zip` runs.

    Example: `bundled(["files", "output"], start="from patchwright.sandbox import files")`
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as bundle:
        if start:
            bundle.writestr("__main__.py", start)
        for package in ("patchwright", "patchwright/sandbox"):
            bundle.writestr(f"{package}/__init__.py", "")
        for module in modules:
            source = Path(__file__).with_name(f"{module}.py").read_bytes()
            bundle.writestr(f"patchwright/sandbox/{module}.py", source)
    return buffer.getvalue()
