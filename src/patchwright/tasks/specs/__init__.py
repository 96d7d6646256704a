"""Specs: how each repository of the known data sets is set up and tested, when a row does not say it itself.

    row -> spec_for -> Spec -> eval_script / eval_command (and the environment, in `environment`)

The data carries over the facts of the official packages (swebench 4.1.0, the SWE-Gym fork, SWE-smith; all
MIT); the tests compare it with them.
"""

from patchwright.tasks.specs.rows import spec_for
from patchwright.tasks.specs.script import eval_command, eval_script, test_command, with_exit_code
from patchwright.tasks.specs.spec import Spec
from patchwright.tasks.specs.table import known, spec_of, versions

__all__ = [
    "Spec",
    "eval_command",
    "eval_script",
    "known",
    "spec_for",
    "spec_of",
    "test_command",
    "versions",
    "with_exit_code",
]
