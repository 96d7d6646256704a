"""The pages people read, and what they tell them to type."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", *sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/**/*.md")))
_FENCE = re.compile(r"^ *```(\w*|\{[^\n]*)\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
_SHELL = ("bash", "sh", "console", "text", "")
_ENDS = {"|", "||", "&", "&&", ";", ">", ">>", "2>", "2>&1", "<"}


def blocks(page: str, *kinds: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = _FENCE.findall((ROOT / page).read_text())
    return [text for kind, text in found if kind in kinds]


def commands(page: str) -> Iterator[list[str]]:
    """The words after `patchwright` of every command line in a page's blocks, redirections and pipes cut."""
    for block in blocks(page, *_SHELL):
        for line in block.replace("\\\n", " ").splitlines():
            start = re.match(r"(?:\$ )?(?:[A-Z_]+=\S+ )*patchwright (.*)", line.strip())
            if start:
                yield _cut(shlex.split(start[1], comments=True))


def mentions(page: str) -> list[list[str]]:
    """Commands named in the text of a page: `patchwright check sandbox NAME`, maybe with alternatives."""
    text = _FENCE.sub("", (ROOT / page).read_text())
    spans = re.findall(r"`patchwright ([^`]+)`", text)
    return [span.replace("\\|", "|").split() for span in spans]


def _cut(words: list[str]) -> list[str]:
    end = next((at for at, word in enumerate(words) if word in _ENDS), len(words))
    return words[:end]
