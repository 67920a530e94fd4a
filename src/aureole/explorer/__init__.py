"""Pages and figures: the explorer of a gallery, the reports of a head and of a match calibrator, the quickstart."""

from aureole.explorer._explorer import choose_columns, explorer_data, write_explorer
from aureole.explorer._gallery_map import GalleryMap, fit_map, read_map, write_map
from aureole.explorer._gallery_table import GalleryTable
from aureole.explorer._head import (
    extremes,
    picture_items,
    text_items,
    write_head_report,
    write_kappa_report,
)
from aureole.explorer._match_report import (
    MADE,
    Aim,
    format_threshold,
    percent_range,
    threshold_aims,
    usage_code,
    write_match_report,
)
from aureole.explorer._nearest_rows import GalleryRows
from aureole.explorer._notebook import Exploration, explore
from aureole.explorer._page import Gallery, check_page
from aureole.explorer._questions import Questions, inspect_gallery, outlier_p_values
from aureole.explorer._questions_file import load_questions, questions_path, save_questions

__all__ = [
    "Exploration",
    "GalleryMap",
    "GalleryTable",
    "Questions",
    "explore",
    "explorer_data",
    "fit_map",
    "inspect_gallery",
    "load_questions",
    "outlier_p_values",
    "questions_path",
    "read_map",
    "save_questions",
    "write_explorer",
    "write_head_report",
    "write_map",
    "write_match_report",
]
