"""Sphinx configuration."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "_ext"))

from notebook_cache import fingerprint  # noqa: E402

project = "aureole"
author = "The aureole developers"
copyright = "The aureole developers"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "mathml",
    "sphinx.ext.napoleon",
    "record_tables",
    "training_tables",
    "scale_tables",
    "facts",
    "concept_figures",
    "api_reference",
    "quickstart_tables",
    "run_tables",
    "peer_tables",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
html_theme = "furo"
html_title = "aureole"
pygments_dark_style = "github-dark"  # the default underlines names as if they were links
exclude_patterns = ["_build"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
nitpicky = False
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["math.css", "notebooks.css"]

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
os.environ["MATPLOTLIBRC"] = str(HERE / "_static" / "matplotlibrc")
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # from tqdm, not shown anyway
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
