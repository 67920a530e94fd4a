"""``aureole score``: the certainty of every row of a table."""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from aureole.cli._options import Head, VectorColumn, Vectors
from aureole.cli._progress import rows_bar
from aureole.cli._results import print_json
from aureole.data import ARRAYS, ColumnWriter, read_vectors, scan_column
from aureole.errors import InvalidInputError
from aureole.training import CHUNK, FrozenHead, kappas, partner_cosines

HELP = """Write the certainty of every row of a table of vectors.

The columns are id (the row's number, unless --id-column names others), kappa, and cosine_90: partners of the row lie
within this cosine of its mu in 90 % of cases, if they are as certain as the median row. Rows are read and written in
pieces, so that tables larger than memory will do.

Examples:

    aureole score vectors.parquet --head head --id-column id --out scored.csv
    aureole score vectors.npy --head head --with-mu --out scored.parquet
    aureole score vectors.npy --head head --mass 0.95 --out scored.csv
"""


def score(
    vectors: Vectors,
    head: Head,
    out: Annotated[
        Path, typer.Option(help="The file to write: .parquet, .csv or .jsonl; it is replaced.")
    ],
    vector_column: VectorColumn = None,
    id_column: Annotated[str | None, typer.Option(help="The column of ids.")] = None,
    columns_from: Annotated[
        Path | None,
        typer.Option(help="The file with the ids, row by row; default: the vectors'."),
    ] = None,
    mass: Annotated[
        float, typer.Option(help="How likely partners are within the cosine, between 0 and 1.")
    ] = 0.9,
    with_mu: Annotated[bool, typer.Option("--with-mu", help="Write mu, too.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a summary as one JSON object.")
    ] = False,
) -> None:
    """Write id, kappa and the partners' cosine of each row; ``HELP`` is what users read."""
    started = time.monotonic()
    if not 0 < mass < 1:
        raise typer.BadParameter(f"--mass must be between 0 and 1, not {mass}.")
    others = columns_from or vectors
    for path in (vectors, others):
        if out.resolve() == path.resolve():
            raise InvalidInputError(
                f"--out would replace {path}, which is read. Name another file."
            )
    table = ColumnWriter(out)
    fitted = FrozenHead.load(head)
    quiet = as_json or not sys.stderr.isatty()
    with rows_bar("reading", shown=not quiet) as observer:
        found = read_vectors(vectors, vector_column, work=out.parent, observer=observer)
    with rows_bar("scoring", len(found), shown=not quiet) as observer:
        kappa = kappas(fitted, found, observer=observer)
    cosines = partner_cosines(
        kappa,
        mass,
        kappa_other=float(np.median(kappa)),
        kappa_pos=fitted.kappa_pos_,
        dim=fitted.dim_,
    )
    named = id_column is not None or (columns_from is not None and others.suffix in ARRAYS)
    ids = scan_column(others, id_column) if named else _numbers(len(found))
    first, name = 0, f"cosine_{100 * mass:g}"
    with table, rows_bar("writing", len(found), shown=not quiet) as observer:
        for part in ids:
            rows = slice(first, first + len(part))
            _check_rows(len(found), rows.stop, others)
            columns: dict[str, Any] = {"id": part, "kappa": kappa[rows], name: cosines[rows]}
            if with_mu:
                columns["mu"] = fitted.predict(found[rows]).mu.cpu().numpy()
            table.write(columns)
            first = rows.stop
            observer(first)
        if first < len(found):
            raise InvalidInputError(_unequal(len(found), first, others))
    low, median, high = (float(q) for q in np.quantile(kappa.astype(np.float64), (0.05, 0.5, 0.95)))
    if as_json:
        results = {
            "out": str(out),
            "rows": len(found),
            "dim": fitted.dim_,
            "kappa_pos": fitted.kappa_pos_,
            "kappa": {"0.05": low, "0.5": median, "0.95": high},
            "mass": mass,
            "seconds": time.monotonic() - started,
        }
        print_json(results)
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{len(found):,} rows; κ: median {median:.4g}, 90 % within {low:.4g} to {high:.4g}"
    )
    console.print(f"written to {out}", markup=False)


def _numbers(rows: int) -> Iterator[np.ndarray]:
    for first in range(0, rows, CHUNK):
        yield np.arange(first, min(first + CHUNK, rows))


def _check_rows(rows: int, ids: int, others: Path) -> None:
    if ids > rows:
        raise InvalidInputError(_unequal(rows, ids, others))


def _unequal(rows: int, ids: int, others: Path) -> str:
    more = " or more" if ids > rows else ""
    return f"{rows} vectors need as many ids, but {others} has {ids}{more}: the files do not belong together."
