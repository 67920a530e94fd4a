"""Pages and figures: the explorer of a gallery, the reports of a head and of a match calibrator, the quickstart."""

from aureole.explorer._explorer import explore, explorer_data, write_explorer
from aureole.explorer._gallery_map import fit_map, read_map, write_map
from aureole.explorer._head import write_head_report
from aureole.explorer._match_report import write_match_report
from aureole.explorer._questions import inspect_gallery

__all__ = [
    "explore",
    "explorer_data",
    "fit_map",
    "inspect_gallery",
    "read_map",
    "write_explorer",
    "write_head_report",
    "write_map",
    "write_match_report",
]
