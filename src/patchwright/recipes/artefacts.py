"""What agents leave besides a patch (a harness's own log of events), kept in a run's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from patchwright.store import files

__all__ = ["keep_files", "safe_name"]


def safe_name(text: str) -> str:
    """An id or path as one file name, whatever it holds. Example: `safe_name("a/b") == "a%2Fb"`"""
    name = quote(text, safe=" []@+,=")
    return f"%2E{name[1:]}" if name.startswith(".") else name


def keep_files(folder: Path, left: Mapping[str, bytes]) -> None:
    """Write the files into a folder of their own. Raises StoreError when the disk refuses."""
    with files.attributed("keep what an agent left", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in left.items():
            beside = folder / f"{safe_name(name)}.tmp"
            beside.write_bytes(content)
            files.commit(beside, folder / safe_name(name))
