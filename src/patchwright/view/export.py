"""One attempt in one HTML file that opens from disk, needs no server and asks nobody for anything."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from patchwright.store import files
from patchwright.view.api import attempt_json, json_text
from patchwright.view.server import STATIC
from patchwright.view.shelf import Book
from patchwright.view.tokens import token_record

__all__ = ["export_html"]

_MODULES = ("dom.js", "text.js", "keys.js", "tokens.js", "attempt.js", "export.js")
"""What an attempt's page is made of, each after what it imports."""
_IMPORT = re.compile(r'^import [^;]*? from "\./[\w.]+";\n', re.MULTILINE | re.DOTALL)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def export_html(book: Book, attempt: str, out: Path) -> int:
    """Write the file; returns its bytes. Raises ConfigError without such an attempt, StoreError when the disk
    refuses."""
    data = {"attempt": attempt_json(book, attempt), "tokens": token_record(book, book.trajectory(attempt))}
    data["attempt"]["siblings"] = []
    text = _page(json_text(data))
    with files.attributed("write the page", out.parent):
        files.write_text(out, text)
    return len(text.encode())


def _page(data: str) -> str:
    style, script = (STATIC / "app.css").read_text(encoding="utf-8"), bundle()
    policy = f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<title>Attempt</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<main id="main" tabindex="-1"></main>\n<div id="help" hidden></div>\n'
        f'<script type="application/json" id="data">{_inert(data)}</script>\n'
        f'<script type="module">{script}</script>\n</body>\n</html>\n'
    )


def bundle() -> str:
    """The modules as one script: what they import of each other is in it already."""
    texts = [(STATIC / name).read_text(encoding="utf-8") for name in _MODULES]
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", text)) for text in texts)


def _inert(data: str) -> str:
    """JSON that cannot end the element it stands in, or begin another."""
    return data.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
