"""Sphinx configuration."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from notebook_cache import fingerprint  # noqa: E402

from aureole.plot import DARK, LIGHT, STYLE  # noqa: E402

project = "aureole"
author = "The aureole developers"
copyright = "The aureole developers"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "mathml",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "api_reference",
    "notebook_figures",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "aureole"
html_favicon = html_logo = "_static/favicon.svg"


def _theme(colours):
    """The palette, and furo's own variables in its colours."""
    furo = {
        "color-brand-primary": "accent", "color-brand-content": "accent", "color-brand-visited": "accent",
        "color-background-primary": "paper", "color-background-secondary": "band",
        "color-background-hover": "glow", "color-background-border": "line",
        "color-foreground-primary": "ink", "color-foreground-secondary": "soft",
        "color-foreground-muted": "soft", "color-foreground-border": "soft",
        "color-sidebar-background": "band", "color-highlight-on-target": "glow",
        "color-inline-code-background": "band", "color-admonition-title": "accent",
        "color-admonition-title-background": "glow",
    }  # fmt: skip
    return dict(colours) | {name: colours[value] for name, value in furo.items()}


html_theme_options = {
    "light_css_variables": _theme(LIGHT),
    "dark_css_variables": _theme(DARK),
    "top_of_page_buttons": [],  # "view source" is outside all landmarks
}
pygments_dark_style = "github-dark"  # the default underlines names as if they were links
exclude_patterns = ["_build"]
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
# copied code has neither prompts nor output
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
copybutton_line_continuation_character = "\\"
autodoc_member_order = "bysource"
nitpicky = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["math.css", "notebooks.css", "identity.css"]
html_js_files = ["accessibility.js"]
html_search_scorer = str(HERE / "_static" / "search_scorer.js")

# The build executes the tutorials, and fails if a cell fails. Outputs are cached as long as neither the cells nor
# the library change: the name of the cache folder contains a digest of the library.
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE / "_build" / "notebooks" / fingerprint(HERE.parent))
nb_execution_raise_on_error = True
nb_execution_timeout = (
    600  # seconds per cell: cells take less than a minute, but machines may be busy
)
nb_execution_in_temp = True
nb_merge_streams = True
nb_output_stderr = "warn"  # shown on the page, and fails the build: fix the cause, do not hide it
os.environ["MATPLOTLIBRC"] = str(STYLE)
os.environ["IPYTHONDIR"] = str(HERE / "_ext" / "ipython")  # figures as SVG
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # from tqdm, not shown anyway
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
