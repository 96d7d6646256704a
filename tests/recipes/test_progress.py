"""What a long command shows: words of users, servers and models, none of which is markup."""

import io

import pytest
from rich.console import Console

from patchwright.recipes.progress import View

STRANGE = "failed 'patchwright[wandb]': see [/v2/x] [red]"


@pytest.mark.parametrize("terminal", [True, False])
def test_nothing_that_is_shown_is_markup(terminal):
    file = io.StringIO()
    view = View(Console(file=file, force_terminal=terminal, width=300))
    view.say(STRANGE)
    with view.work(f"work {STRANGE}"):
        pass
    with view.stage(f"stage {STRANGE}", total=2) as stage:
        stage.note(f"note {STRANGE}")
    shown = file.getvalue()
    for line in (STRANGE, f"work {STRANGE}", f"stage {STRANGE}", f"note {STRANGE}"):
        assert line in shown
