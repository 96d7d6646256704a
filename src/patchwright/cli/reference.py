"""`docs/cli.md`, generated from the commands and `exits.py`: `make docs`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import typer

from patchwright.cli.app import app
from patchwright.cli.exits import ANSWERS, MEANINGS

__all__ = ["commands", "page"]

_PAGE = """# The command line

`patchwright COMMAND --help` explains every option. This page is generated from the program
(`make docs`); a test compares the two.

## Exit codes

{codes}

A mistake and a failure are one sentence on stderr, with what to do about it. These commands end with 1
when all their work was done and the answer is no:

{answers}

## Progress and results

Results go to stdout, progress to stderr. On a terminal progress is live: a bar with its rate, or a
spinner with the time; in a pipe or a log it is a plain line at the start, at most one every five seconds
while things get done, and one at the end. Commands marked `--json` below print their result as JSON on
stdout, and nothing else there (`bench fleet` wants a file, or `-` for stdout):

```bash
patchwright doctor --json
patchwright agents list --json
```

| with `--json` | printed |
| --- | --- |
| `quickstart` | the `summary.json` of its run |
| `train sft`, `rl`, `verifier` | `run`, its `weights` (the folder) and their `version` |
| the same with `--dry-run` | `model`, `placement`, `memory_gb`, `step`, `boxes`, `missing` |
| `tasks synth`, `mine`, `import`, `export`, `filter`, `split` | `files`: how many tasks each has |
| `tasks build-env` | `path`, `images`, `failed` (why) |
| `images pull` | `images`: `null`, or why one cannot be had |
| `export sft`, `verifier`, `prm`, `slime`, `hub` | `path`, `rows`, `attempts`, `left_out` (counts) |

## Completion

`patchwright --install-completion` makes the shell that runs it (bash, zsh, fish, PowerShell) complete
commands and options; `patchwright --show-completion` prints what it would install.

## Commands

{commands}
"""


def commands(group: Any | None = None, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command with its full name, in the order of `--help`."""
    found: Any = typer.main.get_command(app) if group is None else group
    for name, command in found.commands.items():
        full = f"{path} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, full)
        else:
            yield full, command


def page() -> str:
    """The text of `docs/cli.md`."""
    codes = [(str(int(code)), meaning) for code, meaning in MEANINGS.items()]
    answers = [(f"`{name}`", meaning) for name, meaning in sorted(ANSWERS.items())]
    rows = [(f"`{name}`", _json(command), _first(command)) for name, command in commands()]
    return _PAGE.format(
        codes=_table(("code", "meaning"), codes),
        answers=_table(("command", "1 means"), answers),
        commands=_table(("command", "JSON", "what it does"), rows),
    )


def _json(command: Any) -> str:
    return "`--json`" if any("--json" in one.opts for one in command.params) else ""


def _first(command: Any) -> str:
    """The first paragraph of its help, in one line."""
    return " ".join((command.help or "").split("\n\n")[0].split()).replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    sys.stdout.write(page())
