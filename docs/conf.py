"""Sphinx: the pages of this folder and the API reference as HTML. `make docs` builds them into `build/docs`."""

from patchwright import __version__

project = "Patchwright"
author = "the Patchwright authors"
copyright = author
version = release = __version__
html_theme = "furo"
html_title = f"Patchwright {version}"
html_static_path = []

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["results/*/*.md"]  # their text is on results/README.md
highlight_language = "text"

# Links between pages are checked by the build: `page.md#heading` as GitHub names headings.
myst_heading_anchors = 4

# Docstrings write `name` in single backquotes, as these pages do.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True, "undoc-members": True}
autodoc_inherit_docstrings = False
python_use_unqualified_type_names = True
