"""Configuration of the documentation site (`make docs`). Neither the build nor a reader needs the network."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from dispatch import __version__  # noqa: E402 - found by the line above

project = "dispatch"
author = "The dispatch authors"
version = release = __version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "docs.generators.extension",
]
exclude_patterns = ["generators"]
nitpicky = True  # a reference to an object that does not exist is an error (`docs/generators/extension.py`)
nitpick_ignore_regex = [("py:class", r"(collections\.abc\.Callable|dict)\[.*")]  # Sphinx splits the type at its comma
nitpick_ignore = [
    ("py:attr", "injector"),  # set in __init__: the class does not have it
    ("py:class", "nx.DiGraph"),  # libraries of extras, imported for type checkers only
    ("py:class", "Figure"),
]

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True  # the policy's default has 60 fields
autodoc_default_options = {"members": True}
napoleon_use_ivar = True  # attributes are listed in the docstring of their class, without an entry of their own

html_theme = "furo"
html_title = "dispatch"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["assets"]
html_css_files = ["tables.css"]
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
