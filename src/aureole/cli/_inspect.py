"""``aureole inspect``: questions about a gallery."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import aureole as au
from aureole.cli._inputs import EncoderSpec
from aureole.cli._lazy import rich
from aureole.cli._options import AsJson, Gallery, OptionalHead, expanded, option, run_digest
from aureole.cli._output import add_row, is_quiet, print_json, print_text, rows_bar, table

HELP = r"""Find suspicious labels, confused classes, near duplicates and outliers in a gallery.

A label is suspicious if the items that probably match the item have other labels. Classes are confused if the caps of
one contain items of the other. An outlier is far from everything. Near duplicates need --encoder, which encodes edited
copies of some items to learn how close a copy is.

The answers are written next to the gallery (or to --out), where `aureole serve` finds them. Large galleries: if the
command is interrupted, run it again to resume.

Examples:

    aureole inspect gallery.lance --label-column label
    aureole inspect captions.lance --text-column text --head minilm-captions \
      --encoder sentence-transformers:all-MiniLM-L6-v2
    aureole inspect gallery.lance --pictures pictures --encoder encoder --json
"""


@dataclass(frozen=True)
class ColumnOptions:
    """What the gallery holds."""

    label_column: str | None = option("Label column (default: label).")
    text_column: str | None = option("Text column (default: text).")
    pictures: Path | None = option("Folder of pictures named after the ids.")


@dataclass(frozen=True)
class CopyOptions:
    """The encoder of the gallery, to find near duplicates."""

    encoder: EncoderSpec = None
    head: OptionalHead = None

    @property
    def given(self) -> bool:
        """Whether copies can be encoded."""
        return self.encoder is not None or self.head is not None


@expanded
def inspect(
    gallery: Gallery,
    columns: ColumnOptions,
    copying: CopyOptions,
    out: Annotated[
        Path | None, Option(help="File to write (default: next to the gallery).")
    ] = None,
    limit: Annotated[int, Option(help="Items to print for each question.", min=1)] = 10,
    as_json: AsJson = False,
) -> None:
    """Answer questions about a gallery; ``HELP`` is the text users see."""
    started, shown = time.monotonic(), not is_quiet(as_json=as_json)
    path = out or au.explorer.questions_path(gallery)
    pictures = columns.pictures
    if pictures is not None and not pictures.is_dir():
        raise typer.BadParameter(f"the folder of pictures {pictures} does not exist.")
    partial = path.with_name(path.name + ".partial")
    with au.CredibleIndex.open(gallery) as index:
        given = (columns.label_column, columns.text_column)
        label, text = au.explorer.choose_columns(index.schema.columns, *given)
        if copying.given and text is None and pictures is None:
            raise typer.BadParameter(
                "--encoder makes copies of texts or pictures: add --text-column or --pictures."
            )
        read = {name for name in (label, text if copying.given else None) if name}
        rows = au.explorer.GalleryRows.read(index, sorted(read))
        with rows_bar("inspecting", len(rows), shown=shown) as bar:
            duplicates = None
            if copying.given:
                texts = rows.payload[text] if pictures is None and text else None
                duplicates = _duplicates(index, rows, copying, texts, pictures, bar)
            questions = au.explorer.inspect_gallery(
                index,
                label_column=label,
                rows=rows,
                duplicates=duplicates,
                folder=partial / run_digest([rows.version, len(rows)], []),
                observer=lambda _, done, __: bar(done),
            )
    au.explorer.save_questions(questions, path)
    shutil.rmtree(partial, ignore_errors=True)
    facts = inspect_facts(questions, gallery, limit)
    facts |= {"out": str(path), "seconds": time.monotonic() - started}
    if as_json:
        print_json(facts)
    else:
        _show(facts)


def inspect_facts(questions: au.explorer.Questions, gallery: str, limit: int) -> dict[str, Any]:
    """What ``aureole inspect`` prints as JSON: the counts and the first items of each question."""
    answers = {}
    for entry in questions.summary():
        first = questions.answer(entry["name"], 0, limit)[1] if entry["available"] else []
        answers[entry["name"]] = entry | {"first": first}
    return {
        "gallery": au.retrieval.shown_address(gallery),
        "rows": len(questions),
        "settings": questions.settings,
        "questions": answers,
        "confusions": questions.confusions(limit),
    }


def _duplicates(
    index: au.CredibleIndex,
    rows: au.explorer.GalleryRows,
    copying: CopyOptions,
    texts: list[str] | None,
    pictures: Path | None,
    bar: Callable[[int], None],
) -> au.retrieval.NearDuplicates:
    """The near duplicates of the gallery, by edits that its own encoder encodes."""
    embedder = au.scale.ModelSpec(copying.encoder, copying.head).load("text" if texts else "image")
    who = f"the model {copying.encoder or copying.head}"
    index.origin.check_same(embedder.weights, who, encoder=embedder.fingerprint)
    return au.explorer.gallery_duplicates(
        rows, embedder, texts=texts, pictures=pictures, observer=lambda _, done, __: bar(done)
    )


def _show(facts: dict[str, Any]) -> None:
    answers = facts["questions"]
    titles: dict[str, tuple[str, Callable[[dict[str, Any]], tuple[str, ...]]]] = {
        "labels": ("suspicious labels", _label_cells),
        "ambiguous": ("ambiguous items", _label_cells),
        "duplicates": (
            "near duplicates",
            lambda e: (e["id"], str(e["partner_id"]), f"{e['score']:.3f}"),
        ),
        "outliers": (
            "outliers",
            lambda e: (
                *(e["id"], f"{57.29578 * e['angle']:.1f}°", f"{e['p_value']:.4g}"),
                "yes" if e["beyond"] else "no",
            ),
        ),
    }
    headers = {
        "labels": ("id", "label", "cap", "share of label", "share of cap"),
        "ambiguous": ("id", "label", "other", "share of label", "share of other"),
        "duplicates": ("id", "copy", "probability"),
        "outliers": ("id", "angle", "p-value", "far out"),
    }
    console = rich.console.Console(soft_wrap=True)
    for name, (title, cells) in titles.items():
        entry = answers[name]
        if not entry["available"]:
            print_text(f"{title}: {entry['reason']}")
            continue
        if not entry["first"]:
            print_text(f"{title}: none")
            continue
        title += f": {entry['count']:,}"
        rows = table(title, *headers[name])
        for found in entry["first"]:
            add_row(rows, *cells(found))
        console.print(rows)
    if facts["confusions"]:
        rows = table("classes that caps mix", "class", "class", "share", "share back", "items")
        for pair in facts["confusions"]:
            shares = (f"{100 * share:.1f} %" for share in pair["shares"])
            add_row(rows, *pair["classes"], *shares, f"{pair['count']:,}")
        console.print(rows)
    print_text(f"answers written to {facts['out']}")


def _label_cells(entry: dict[str, Any]) -> tuple[str, ...]:
    shares = (f"{100 * entry[name]:.0f} %" for name in ("own_share", "other_share"))
    return (str(entry["id"]), str(entry["label"]), str(entry["other"]), *shares)
