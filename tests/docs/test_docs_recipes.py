"""The pages that do published runs again: what needs no cluster of theirs is run, the rest is planned."""

import subprocess
import sys

import pytest
from tests.docs.pages import commands

from patchwright.recipes.presets import load_training
from patchwright.recipes.settings import Settings

RECIPES = ("docs/recipe-swe-gym.md", "docs/recipe-swe-rl.md", "docs/recipe-qwen-code.md", "docs/scale.md")
PLANS = [words for page in RECIPES for words in commands(page) if "--dry-run" in words]
EVALUATIONS = [words for page in RECIPES for words in commands(page) if words[0] == "eval"]


@pytest.mark.parametrize("words", PLANS, ids=" ".join)
def test_a_dry_run_says_what_the_preset_needs(words, tmp_path):
    command = [sys.executable, "-m", "patchwright.cli", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for part in ("placement", "memory of a GPU that trains", "missing on this machine"):
        assert part in done.stdout
    assert not list(tmp_path.iterdir())


def test_every_preset_of_the_pages_is_there():
    for words in (words for page in RECIPES for words in commands(page)):
        if words[0] == "train":
            assert load_training(words[1], words[words.index("--preset") + 1], None, []) != Settings()
    assert len(PLANS) >= 9 and len(EVALUATIONS) >= 5
