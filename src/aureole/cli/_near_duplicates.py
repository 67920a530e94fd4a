"""``aureole near-duplicates``: groups of copies among texts, pictures or vectors, with a probability for each pair."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import aureole as au
from aureole._io import atomic_write, check_local
from aureole.cli._copy_examples import (
    CopyExamples,
    ExampleOptions,
    labelled_examples,
    make_examples,
    read_labels,
    read_texts,
)
from aureole.cli._inputs import IMAGE, InputOptions, is_pictures, resumable
from aureole.cli._lazy import np
from aureole.cli._options import AsJson, VectorColumn, Vectors, expanded, option, run_digest
from aureole.cli._output import finite, is_quiet, print_json, print_text, rows_bar
from aureole.errors import InvalidInputError

HELP = r"""Find near duplicates among texts, pictures or vectors, and write groups of them and a page.

Each pair gets the probability that one is an edited copy of the other. The command learns how close copies are from
edits that it makes and encodes itself (texts: up to three words; pictures: small crops, recompression, brightness), or
from --examples. How many copies the gallery has is estimated from the gallery. Equal rows are always reported.

The folder gets page.html, groups.csv, pairs.csv and near_duplicates.json. If the command is interrupted, run it again
to resume.

Examples:

    aureole near-duplicates captions.csv --text-column caption \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --out copies
    aureole near-duplicates photos/ --encoder timm:resnet50 \
      --precision 0.9 --out copies
    aureole near-duplicates vectors.parquet --id-column id \
      --examples labelled.csv --label-column same --out copies
"""

SUMMARY = "near_duplicates.json"


@dataclass(frozen=True)
class ColumnOptions:
    """The columns to read."""

    vector_column: VectorColumn = None
    id_column: str | None = option("Column of ids (default: row numbers from 0).")


@expanded
def near_duplicates(
    gallery: Vectors,
    out: Annotated[Path, Option(help="Folder to write.")],
    columns: ColumnOptions,
    inputs: InputOptions,
    learning: ExampleOptions,
    precision: Annotated[
        float, Option(help="Expected share of copies among reported pairs that are not equal.")
    ] = 0.99,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an earlier result.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find, group and write near duplicates; ``HELP`` is the text users see."""
    started = time.monotonic()
    _check(gallery, out, columns, inputs, learning, precision, overwrite)
    encoder, shown = inputs.load(), not is_quiet(as_json=as_json)
    labelled = read_labels(gallery, columns.id_column, learning)
    files = [f for path in (gallery, learning.examples) if path for f in au.data.table_files(path)]
    settings = [vars(columns), inputs.column(gallery), inputs.normalized, learning.made]
    settings += [learning.seed, encoder and encoder.fingerprint]
    check_local(out)
    partial = out.with_name(f"{out.name}.partial-{run_digest(settings, files)}")
    work: dict[str, Any] = {"work": partial, "shown": shown}
    with resumable(partial):
        resume = partial / "vectors" if encoder else None
        vectors = inputs.vectors(gallery, encoder, columns.vector_column, resume=resume, **work)
        texts = read_texts(gallery, inputs, len(vectors))
        examples = (
            make_examples(gallery, inputs, encoder, texts, len(vectors), learning, partial, shown)
            if labelled is None
            else labelled_examples(labelled, vectors, texts)
        )
        with rows_bar("comparing", len(vectors), shown=shown) as observer:
            found = au.retrieval.find_near_duplicates(
                vectors,
                examples.vectors,
                examples.originals,
                precision=precision,
                texts=None if examples.texts is None else texts,
                copy_texts=examples.texts,
                observer=observer,
            ).without(examples.different)
        names = _names(gallery, columns.id_column, len(vectors))
        facts = _facts(found, len(vectors), precision, len(examples.vectors))
        _write(
            found,
            partial / "result",
            facts,
            names,
            _content(found, gallery, inputs, names, examples, facts),
        )
    if out.exists():
        shutil.rmtree(out)
    (partial / "result").rename(out)
    shutil.rmtree(partial, ignore_errors=True)
    facts = {"out": str(out), **facts, "seconds": time.monotonic() - started}
    if as_json:
        print_json(facts)
    else:
        _show(facts, out)


def _check(
    gallery: Path,
    out: Path,
    columns: ColumnOptions,
    inputs: InputOptions,
    learning: ExampleOptions,
    precision: float,
    overwrite: bool,
) -> None:
    """Raise for options and tables that cannot be used, before a model is loaded."""
    if not 0 < precision < 1:
        raise typer.BadParameter(f"--precision must be between 0 and 1, not {precision}.")
    inputs.check(gallery, vector_column=columns.vector_column)
    au.data.check_columns(gallery, columns.id_column)
    if inputs.encoder is None and learning.examples is None:
        raise typer.BadParameter(
            "vectors cannot be edited: give --encoder and a column of texts or pictures, or --examples."
        )
    if learning.examples is None and learning.label_column is not None:
        raise typer.BadParameter("--label-column needs --examples.")
    if learning.examples is not None:
        au.data.check_columns(
            learning.examples, learning.left, learning.right, learning.label_column
        )
    au.explorer.check_page()
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        if not (out / SUMMARY).is_file():
            raise InvalidInputError(
                f"{out} already exists and is not a result of near-duplicates. Choose another folder for --out."
            )
        if not overwrite:
            raise InvalidInputError(
                f"{out} already holds a result. Add --overwrite to replace it, or choose another folder for --out."
            )


def _names(gallery: Path, id_column: str | None, rows: int) -> list[Any]:
    """The id of each row: a value of the id column, the path of a picture, or the row number."""
    if id_column is None and is_pictures(gallery):
        id_column = IMAGE
    if id_column is None:
        return list(range(rows))
    names: list[Any] = []
    for piece in au.data.scan_column(gallery, id_column):
        names += piece.to_pylist() if hasattr(piece, "to_pylist") else piece.tolist()
    return names


def _facts(
    found: au.retrieval.NearDuplicates, rows: int, precision: float, examples: int
) -> dict[str, Any]:
    return {
        "rows": rows,
        "groups": len(found.groups),
        "rows_in_groups": sum(len(group) for group in found.groups),
        "pairs": len(found.pairs),
        "equal_pairs": int(found.equal.sum()),
        "edited_pairs": int((~found.equal).sum()),
        "precision": precision,
        "expected_precision": found.expected_precision,
        "expected_recall": found.expected_recall,
        "edited_copies": found.edited_copies,
        "threshold": found.threshold,
        "examples": examples,
    }


def _content(
    found: au.retrieval.NearDuplicates,
    gallery: Path,
    inputs: InputOptions,
    names: list[Any],
    examples: CopyExamples,
    facts: dict[str, Any],
) -> au.explorer.DuplicatesContent:
    rows, column = au.explorer.shown_rows(found), inputs.column(gallery)
    shown = {} if column is None else au.data.pick_inputs(gallery, column, inputs.kind, rows)
    return au.explorer.DuplicatesContent(
        source=gallery.name,
        rows=facts["rows"],
        precision=facts["precision"],
        examples=examples.about,
        kind=inputs.kind,
        inputs=shown,
        names={row: _shown_name(names[row], row) for row in rows},
    )


def _shown_name(name: Any, row: int) -> str:
    return f"row {row}" if name == row else str(name)[:120]


def _write(
    found: au.retrieval.NearDuplicates,
    folder: Path,
    facts: dict[str, Any],
    names: list[Any],
    content: au.explorer.DuplicatesContent,
) -> None:
    """Write the page, the tables and the summary."""
    shutil.rmtree(folder, ignore_errors=True)
    au.explorer.write_near_duplicates_page(found, folder / "page.html", content)
    members = [(at, int(row)) for at, group in enumerate(found.groups) for row in group]
    table = {
        "group": np.array([at for at, _ in members], np.int64),
        "row": np.array([row for _, row in members], np.int64),
        "id": np.array([str(names[row]) for _, row in members], object),
    }
    au.data.write_columns(folder / "groups.csv", table)
    pairs: dict[str, Any] = {
        "left": np.array([str(names[row]) for row in found.pairs[:, 0]], object),
        "right": np.array([str(names[row]) for row in found.pairs[:, 1]], object),
        "probability": found.probabilities,
        "cosine": found.cosines,
        "equal": found.equal,
    }
    if found.changed_words is not None:
        pairs["changed_words"] = found.changed_words
    au.data.write_columns(folder / "pairs.csv", pairs)
    groups = [[names[int(row)] for row in group] for group in found.groups]
    summary = finite(facts | {"members": groups})
    atomic_write(folder / SUMMARY, json.dumps(summary, allow_nan=False, default=str))


def _show(facts: dict[str, Any], out: Path) -> None:
    equal = facts["equal_pairs"]
    same = "1 pair is" if equal == 1 else f"{equal:,} pairs are"
    print_text(
        f"{facts['rows']:,} rows; {facts['groups']:,} groups with {facts['rows_in_groups']:,} rows; "
        f"{same} equal, {facts['edited_pairs']:,} are likely edits"
    )
    if facts["edited_pairs"]:
        print_text(f"expected precision of the likely edits: {facts['expected_precision']:.3f}")
    if facts["edited_copies"] >= 0.5:
        print_text(f"estimated number of edited copies: {facts['edited_copies']:,.0f}")
    print_text(f"page written to {out / 'page.html'}")
