"""``aureole inspect``: questions about a gallery."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from typer import Option

import aureole as au
from aureole.cli._lazy import questions as answers
from aureole.cli._options import AsJson, Gallery
from aureole.cli._output import add_row, print_json, print_table, print_text, rows_bar, table
from aureole.engines._addresses import shown_address

HELP = r"""Find suspicious labels, confused classes and outliers in a gallery.

A label is suspicious if the items that probably match the item have other labels. Classes are confused if the caps of
one contain items of the other. An outlier is far from everything.

The answers are written next to the gallery (or to --out), where `aureole serve` finds them.

Examples:

    aureole inspect gallery.lance --label-column label
    aureole inspect gallery.lance --limit 50 --json
"""


def inspect(
    gallery: Gallery,
    label_column: Annotated[str | None, Option(help="Label column (default: label).")] = None,
    out: Annotated[
        Path | None, Option(help="File to write (default: next to the gallery).")
    ] = None,
    limit: Annotated[int, Option(help="Items to print for each question.", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Answer questions about a gallery; ``HELP`` is the text users see."""
    started = time.monotonic()
    from aureole.explorer._explorer import choose_columns

    path = out or answers.questions_path(gallery)
    with au.CredibleIndex.open(gallery) as index:
        label, _ = choose_columns(index.schema.columns, label_column, None)
        with rows_bar("inspecting", index.count(), shown=not as_json) as bar:
            found = answers.inspect_gallery(
                index, label_column=label, observer=lambda _, done, __: bar(done)
            )
    answers.save_questions(found, path)
    shown = {}
    for entry in found.summary():
        first = found.answer(entry["name"], 0, limit)[1] if entry["available"] else []
        shown[entry["name"]] = entry | {"first": first}
    facts = {
        "gallery": shown_address(gallery),
        "rows": len(found),
        "settings": found.settings,
        "questions": shown,
        "confusions": found.confusions(limit),
        "out": str(path),
        "seconds": time.monotonic() - started,
    }
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def _show(facts: dict[str, Any]) -> None:
    for name, (title, headers, cells) in _TABLES.items():
        entry = facts["questions"][name]
        if not entry["first"]:
            print_text(f"{title}: {entry['reason'] or 'none'}")
            continue
        rows = table(f"{title}: {entry['count']:,}", *headers)
        for found in entry["first"]:
            add_row(rows, *cells(found))
        print_table(rows)
    if facts["confusions"]:
        rows = table("classes that caps mix", "class", "class", "share", "share back", "items")
        for pair in facts["confusions"]:
            shares = (f"{100 * share:.1f} %" for share in pair["shares"])
            add_row(rows, *pair["classes"], *shares, f"{pair['count']:,}")
        print_table(rows)
    print_text(f"answers written to {facts['out']}")


def _label_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    shares = (f"{100 * entry[name]:.0f} %" for name in ("own_share", "other_share"))
    return (str(entry["id"]), str(entry["label"]), str(entry["other"]), *shares)


def _outlier_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    far_out = "yes" if entry["beyond"] else "no"
    return (entry["id"], f"{57.29578 * entry['angle']:.1f}°", f"{entry['p_value']:.4g}", far_out)


_TABLES: dict[str, tuple[str, tuple[str, ...], Callable[[dict[str, Any]], tuple[str, ...]]]] = {
    "labels": (
        "suspicious labels",
        ("id", "label", "cap", "share of label", "share of cap"),
        _label_cells,
    ),
    "ambiguous": (
        "ambiguous items",
        ("id", "label", "other", "share of label", "share of other"),
        _label_cells,
    ),
    "outliers": ("outliers", ("id", "angle", "p-value", "far out"), _outlier_cells),
}
