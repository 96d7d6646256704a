"""The configuration reference, generated from the docstrings under the fields: `make docs`."""

from __future__ import annotations

import sys

from patchwright.config import Config, reference
from patchwright.recipes.quickstart.config import QuickstartConfig
from patchwright.recipes.settings import Settings
from patchwright.tasks.synth.config import LibraryConfig
from patchwright.tasks.synthesis import SynthesisConfig
from patchwright.tasks.trust import TrustConfig

PAGE = """# Configuration

TOML files (`--config FILE`) and single keys (`-s a.b=c`, repeatable) are read into typed tables; an unknown
key is refused with the nearest name. A run writes what it resolved to `config.json`. This page is generated
from the docstrings of the fields (`make docs`); a test compares the two.

## `rollout`, `eval`, `grade`, `serve`, `train`

{settings}
## `quickstart`

{quickstart}
## `tasks synth composed`

{synthesis}
## `tasks synth` of a library

{library}
## `tasks validate`

{trust}"""


def page() -> str:
    """The text of `docs/config.md`."""
    parts: dict[str, type[Config]] = {
        "settings": Settings,
        "quickstart": QuickstartConfig,
        "synthesis": SynthesisConfig,
        "library": LibraryConfig,
        "trust": TrustConfig,
    }
    return PAGE.format(**{name: reference(model).strip() + "\n" for name, model in parts.items()})


if __name__ == "__main__":
    sys.stdout.write(page())
