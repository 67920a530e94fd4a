"""Sphinx configuration."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "aureole"
author = "The aureole developers"
copyright = "The aureole developers"  # noqa: A001
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "record_tables",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
html_theme = "furo"
html_title = "aureole"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
nitpicky = False
