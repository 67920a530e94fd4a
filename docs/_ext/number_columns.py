"""Columns of numbers are aligned to the right, in every table of the docs."""

import re

from docutils import nodes

_NUMBER = re.compile(
    r"[-+]?[\d,.]+(?:e-?\d+)?(?: ?± ?[\d,.]+)? ?(?:%|s|ms|MB|GB|kB|h|min|bytes|x|°)?(?: \([^)]*\))?"
)
_EMPTY = ("", "-", "none", "not measured")


def is_number(text: str) -> bool:
    """Whether a cell is a number, with an error or a unit if it has one.

    Examples
    --------
    >>> [is_number(text) for text in ("0.945 ± 0.006", "1,055", "90.2%", "3 of 4", "D = 10")]
    [True, True, True, False, False]
    """
    return bool(_NUMBER.fullmatch(text.strip()))


def align(table: nodes.table) -> None:
    """Give the cells of the columns of numbers the class ``number``."""
    rows = [list(row) for row in table.findall(nodes.row)]
    body = [list(row) for part in table.findall(nodes.tbody) for row in part.findall(nodes.row)]
    if not body or len({len(row) for row in rows}) != 1:
        return
    for column in range(len(body[0])):
        texts = [row[column].astext().strip() for row in body]
        filled = [text for text in texts if text not in _EMPTY]
        if filled and all(map(is_number, filled)):
            for row in rows:
                row[column]["classes"].append("number")


def setup(app):
    """Register with Sphinx."""

    def on_read(_, doctree):
        for table in doctree.findall(nodes.table):
            align(table)

    app.connect("doctree-read", on_read)
    return {"parallel_read_safe": True}
