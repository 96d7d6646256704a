"""What a long command shows: words of users, servers and models, none of which is markup."""

import io
import re
import time

import pytest
from rich.console import Console

from patchwright.recipes import progress
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


def test_a_log_has_a_line_at_the_start_one_at_the_end_and_one_every_five_seconds(monkeypatch):
    file, now = io.StringIO(), time.monotonic()
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with View(Console(file=file)).stage("rl", total=5, done=1) as stage:
        assert file.getvalue() == "rl: 1/5\n", "before anything is done"
        for seconds in (1, 5, 1):
            now += seconds
            stage.advance()
    assert re.findall(r"rl: \d/5", file.getvalue()) == ["rl: 1/5", "rl: 3/5", "rl: 4/5"]
