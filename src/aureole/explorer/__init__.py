"""Pages and figures: the explorer of a gallery, the reports of a head and of a match calibrator, the quickstart."""

from aureole.explorer._explorer import (
    MASSES,
    choose_columns,
    explorer_data,
    page_folder,
    write_explorer,
)
from aureole.explorer._figures import (
    BLUE,
    COLOURS,
    GREEN,
    GREY,
    MARKERS,
    ORANGE,
    SKY,
    VERMILION,
    WIDTH,
    canvas,
    caps_figure,
    place,
    sheet,
)
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
    radius_verdict,
    threshold_aims,
    usage_code,
    write_match_report,
)
from aureole.explorer._near_duplicates_page import (
    DuplicatesContent,
    shown_rows,
    write_near_duplicates_page,
)
from aureole.explorer._page import (
    Gallery,
    Item,
    Picture,
    Report,
    Run,
    Section,
    Table,
    check_page,
    format_number,
    render,
)
from aureole.explorer._quickstart import (
    EXTRAS,
    Quickstart,
    QuickstartSetting,
    missing_packages,
    next_steps,
    run_quickstart,
)
from aureole.explorer._record_table import record_rows, write_record_table

__all__ = [
    "caps_figure",
    "explorer_data",
    "record_rows",
    "write_explorer",
    "write_head_report",
    "write_match_report",
    "write_record_table",
]
