"""Sphinx configuration."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "aureole"
author = "The aureole developers"
copyright = "The aureole developers"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "mathml",
    "sphinx.ext.napoleon",
    "record_tables",
    "training_tables",
    "scale_tables",
    "facts",
    "concept_figures",
    "rooms",
    "run_tables",
    "peer_tables",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
html_theme = "furo"
html_title = "aureole"
exclude_patterns = ["_build"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
nitpicky = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["math.css"]
