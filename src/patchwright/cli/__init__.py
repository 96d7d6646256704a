"""The command line: parses options, calls one recipe, turns errors into one sentence and an exit code.

Commands import what they run inside themselves, so that `patchwright --help` needs neither torch nor pyarrow.
"""

from patchwright.cli.app import main

__all__ = ["main"]
