"""Bug injection: ways in which a function goes plausibly wrong, as edits of its text.

`text` addresses a module by bytes, `line` has the kinds that change one line, `wide` all kinds, `whole`
replaces a function's body, `diff` writes the repair. Sits at the bottom of `tasks`.
"""

from patchwright.tasks.mutation.diff import file_diff, line_diff
from patchwright.tasks.mutation.line import KIND_WEIGHTS, mutants, pick
from patchwright.tasks.mutation.text import Change, Mutant, applied, functions
from patchwright.tasks.mutation.whole import removal, replacement
from patchwright.tasks.mutation.wide import KINDS, changes

__all__ = [
    "KINDS",
    "KIND_WEIGHTS",
    "Change",
    "Mutant",
    "applied",
    "changes",
    "file_diff",
    "functions",
    "line_diff",
    "mutants",
    "pick",
    "removal",
    "replacement",
]
