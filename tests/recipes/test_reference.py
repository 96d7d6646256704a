from pathlib import Path

from patchwright.recipes.reference import page

ROOT = Path(__file__).parents[2]


def test_the_configuration_page_is_the_docstrings():
    assert (ROOT / "docs" / "config.md").read_text() == page(), "run `make docs`"
