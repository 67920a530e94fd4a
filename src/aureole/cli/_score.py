"""``aureole score``: the kappa of every row of a table of vectors."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from typer import Option

from aureole.cli._options import Head, VectorColumn, Vectors, expanded
from aureole.cli._output import (
    about_kappa,
    is_quiet,
    kappa_quantiles,
    print_json,
    print_text,
    rows_bar,
)
from aureole.data import ARRAYS, ColumnWriter, read_vectors, scan_column
from aureole.errors import InvalidInputError
from aureole.training import CHUNK, FrozenHead, kappas, partner_cosines

HELP = """Write the certainty (kappa) of every row of a table of vectors.

The columns are id (the row number, unless you name an --id-column), kappa, and cosine_90: a positive of the row has at
least this cosine to its mu with probability 90 %, if it is as certain as the median row. Rows are read and written in
chunks, so the table may be larger than memory.

Examples:

    aureole score vectors.parquet --head head --id-column id --out scored.csv
    aureole score vectors.npy --head head --with-mu --out scored.parquet
    aureole score vectors.npy --head head --mass 0.95 --out scored.csv
"""


@dataclass(frozen=True)
class ColumnOptions:
    """The columns to read."""

    vector_column: VectorColumn = None
    id_column: Annotated[str | None, Option(help="Column of ids.")] = None
    columns_from: Annotated[
        Path | None, Option(help="File with the ids, in the same row order (default: the table).")
    ] = None


@expanded
def score(
    vectors: Vectors,
    head: Head,
    out: Annotated[Path, Option(help="File to write or replace: .parquet, .csv or .jsonl.")],
    columns: ColumnOptions,
    mass: Annotated[float, Option(help="Probability that a positive is within the cosine.")] = 0.9,
    with_mu: Annotated[bool, Option("--with-mu", help="Also write mu.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print a summary as one JSON object.")] = False,
) -> None:
    """Write id, kappa and the cosine of positives of each row; ``HELP`` is the text users see."""
    started = time.monotonic()
    if not 0 < mass < 1:
        raise typer.BadParameter(f"--mass must be between 0 and 1, not {mass}.")
    ids_from = columns.columns_from or vectors
    for path in (vectors, ids_from):
        if out.resolve() == path.resolve():
            raise InvalidInputError(
                f"--out would overwrite the input {path}. Choose another file for --out."
            )
    table = ColumnWriter(out)
    fitted = FrozenHead.load(head)
    shown = not is_quiet(as_json=as_json)
    with rows_bar("reading", shown=shown) as observer:
        rows = read_vectors(vectors, columns.vector_column, work=out.parent, observer=observer)
    with rows_bar("scoring", len(rows), shown=shown) as observer:
        kappa = kappas(fitted, rows, observer=observer)
    named = columns.id_column is not None or (
        columns.columns_from is not None and ids_from.suffix in ARRAYS
    )
    ids = scan_column(ids_from, columns.id_column) if named else _numbers(len(rows))
    with table, rows_bar("writing", len(rows), shown=shown) as observer:
        first = 0
        for part in _columns(fitted, rows, kappa, mass, with_mu=with_mu, ids=ids):
            first += len(part["id"])
            if first > len(rows):
                raise InvalidInputError(_unequal(len(rows), first, ids_from))
            table.write(part)
            observer(first)
        if first < len(rows):
            raise InvalidInputError(_unequal(len(rows), first, ids_from))
    low, median, high = kappa_quantiles(kappa)
    if as_json:
        print_json(
            {
                "out": str(out),
                "rows": len(rows),
                "dim": fitted.dim_,
                "kappa_pos": fitted.kappa_pos_,
                "kappa": {"0.05": low, "0.5": median, "0.95": high},
                "mass": mass,
                "seconds": time.monotonic() - started,
            }
        )
        return
    print_text(f"{len(rows):,} rows; {about_kappa(low, median, high)}", f"written to {out}")


def _columns(
    head: FrozenHead,
    rows: np.ndarray,
    kappa: np.ndarray,
    mass: float,
    *,
    with_mu: bool,
    ids: Iterator[np.ndarray],
) -> Iterator[dict[str, Any]]:
    """The columns to write, for as many rows at a time as there are ids in a part."""
    typical = float(np.median(kappa))
    cosines = partner_cosines(
        kappa, mass, kappa_other=typical, kappa_pos=head.kappa_pos_, dim=head.dim_
    )
    first = 0
    for part in ids:
        here = slice(first, first + len(part))
        columns = {"id": part, "kappa": kappa[here], f"cosine_{100 * mass:g}": cosines[here]}
        if with_mu and here.stop <= len(rows):
            columns["mu"] = head.predict(rows[here]).mu.cpu().numpy()
        yield columns
        first = here.stop


def _numbers(rows: int) -> Iterator[np.ndarray]:
    for first in range(0, rows, CHUNK):
        yield np.arange(first, min(first + CHUNK, rows))


def _unequal(rows: int, ids: int, path: Path) -> str:
    more = " or more" if ids > rows else ""
    return f"there are {rows} vectors, but {path} has {ids}{more} ids: the files do not match row by row."
