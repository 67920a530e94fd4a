"""``aureole score``: the kappa of every row of a table of vectors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

import aureole as au
from aureole._io import check_local
from aureole.cli._inputs import IMAGE, InputOptions, is_pictures
from aureole.cli._lazy import np
from aureole.cli._options import Head, VectorColumn, Vectors, expanded, option
from aureole.cli._output import (
    about_kappa,
    is_quiet,
    kappa_quantiles,
    print_json,
    print_text,
    rows_bar,
)
from aureole.errors import InvalidInputError

HELP = r"""Write the certainty (kappa) of every row of a table of vectors, texts or pictures.

The columns are id (the row number, unless you name an --id-column), kappa, and cosine_90: a positive of the row has at
least this cosine to its mu with probability 90 %, if it is as certain as the median row. Rows are read and written in
chunks, so the table may be larger than memory.

Examples:

    aureole score vectors.parquet --head head --id-column id --out scored.csv
    aureole score vectors.npy --head head --with-mu --out scored.parquet
    aureole score captions.csv --text-column caption --head head \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --out scored.csv
    aureole score photos/ --encoder timm:resnet50 --head head --out scored.csv
"""


@dataclass(frozen=True)
class ColumnOptions:
    """The columns to read."""

    vector_column: VectorColumn = None
    id_column: str | None = option("Column of ids.")
    columns_from: Path | None = option(
        "File with the ids, in the same row order (default: the table)."
    )


@expanded
def score(
    vectors: Vectors,
    head: Head,
    out: Annotated[Path, Option(help="File to write or replace: .parquet, .csv or .jsonl.")],
    columns: ColumnOptions,
    inputs: InputOptions,
    mass: Annotated[float, Option(help="Probability that a positive is within the cosine.")] = 0.9,
    with_mu: Annotated[bool, Option("--with-mu", help="Also write mu.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print a summary as one JSON object.")] = False,
) -> None:
    """Write id, kappa and the cosine of positives of each row; ``HELP`` is the text users see."""
    from aureole.training._assessment import kappas

    started = time.monotonic()
    if not 0 < mass < 1:
        raise typer.BadParameter(f"--mass must be between 0 and 1, not {mass}.")
    ids_from = columns.columns_from or vectors
    for path in (vectors, ids_from):
        if out.resolve() == path.resolve():
            raise InvalidInputError(f"--out would overwrite the input {path}. Choose another file.")
    inputs.check(vectors, columns.vector_column, vector_column=columns.vector_column)
    id_column = columns.id_column
    if id_column is None and columns.columns_from is None and is_pictures(vectors):
        id_column = IMAGE
    if id_column is not None:
        au.data.check_columns(ids_from, id_column)
    check_local(out)
    table = au.data.ColumnWriter(out)
    fitted, encoder = au.FrozenHead.load(head), inputs.load(head)
    shown = not is_quiet(as_json=as_json)
    rows = inputs.vectors(vectors, encoder, columns.vector_column, work=out.parent, shown=shown)
    with rows_bar("scoring", len(rows), shown=shown) as observer:
        kappa = kappas(fitted, rows, observer=observer)
    in_array = columns.columns_from is not None and ids_from.suffix in au.data.ARRAYS
    named = id_column is not None or in_array
    ids = au.data.scan_column(ids_from, id_column) if named else row_numbers(len(rows))
    with table, rows_bar("writing", len(rows), shown=shown) as observer:
        done = 0
        for part in scored_columns(fitted, rows, kappa, mass, ids=ids, with_mu=with_mu):
            done += len(part["id"])
            if done > len(rows):
                break
            table.write(part)
            observer(done)
        if done != len(rows):
            count = f"{done} or more" if done > len(rows) else done
            raise InvalidInputError(
                f"there are {len(rows)} vectors, but {ids_from} has {count} ids: the files do not match row by row."
            )
    low, median, high = kappa_quantiles(kappa)
    if not as_json:
        print_text(f"{len(rows):,} rows; {about_kappa(low, median, high)}", f"written to {out}")
        return
    quantiles = {"0.05": low, "0.5": median, "0.95": high}
    summary = {"out": str(out), "rows": len(rows), "dim": fitted.dim_}
    summary |= {"kappa_pos": fitted.kappa_pos_, "kappa": quantiles, "mass": mass}
    print_json(summary | {"seconds": time.monotonic() - started})


def row_numbers(rows: int) -> Iterator[np.ndarray]:
    """The numbers of rows from 0, in chunks."""
    from aureole.training._assessment import CHUNK

    starts = range(0, rows, CHUNK)
    return (np.arange(first, min(first + CHUNK, rows)) for first in starts)


def scored_columns(
    head: au.FrozenHead,
    rows: np.ndarray,
    kappa: np.ndarray,
    mass: float,
    *,
    ids: Iterator[Any],
    with_mu: bool = False,
) -> Iterator[dict[str, Any]]:
    """The columns to write, for as many rows at a time as there are ids in a part."""
    from aureole.training._assessment import partner_cosines

    concentrations = {"kappa_other": float(np.median(kappa)), "kappa_pos": head.kappa_pos_}
    cosines = partner_cosines(kappa, mass, dim=head.dim_, **concentrations)
    first = 0
    for part in ids:
        here = slice(first, first + len(part))
        columns = {"id": part, "kappa": kappa[here], f"cosine_{100 * mass:g}": cosines[here]}
        if with_mu and here.stop <= len(rows):
            columns["mu"] = head.predict(rows[here]).mu.cpu().numpy()
        yield columns
        first = here.stop
