"""What a reply of text asks for."""

from __future__ import annotations

import re

__all__ = ["answer_of", "bash_blocks", "runnable"]

_MAX_COMMAND = 100_000
"""Bytes of one command: the kernel refuses longer arguments."""
_THINKING = re.compile(r"\A\s*<think>.*?</think>", re.DOTALL)


def answer_of(text: str) -> str:
    """A reply less the thinking it begins with: a block that was only thought of is not run."""
    return _THINKING.sub("", text, count=1)


def bash_blocks(text: str) -> list[str]:
    """The closed bash blocks of a reply. Fences count only on a line of their own, unindented."""
    blocks: list[str] = []
    current: list[str] | None = None
    for line in text.split("\n"):
        if current is None:
            current = [] if line.rstrip() == "```bash" else None
        elif line.rstrip() == "```":
            blocks.append("\n".join(current))
            current = None
        else:
            current.append(line)
    return blocks


def runnable(command: str) -> bool:
    """Whether a shell can be given this command at all."""
    if not command.strip() or "\0" in command:
        return False
    try:
        return len(command.encode()) <= _MAX_COMMAND
    except UnicodeEncodeError:
        return False
