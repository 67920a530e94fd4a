"""``aureole fit-head``: a head on a table of vectors, resumable."""

import hashlib
import json
import shutil
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from aureole.cli._options import AsJson, ColumnsFrom, GroupColumn, VectorColumn, Vectors, check_out
from aureole.cli._progress import rows_bar, training_bar
from aureole.cli._results import coverage_table, print_json, table
from aureole.data import ARRAYS, read_groups, read_pairs, read_vectors, table_files
from aureole.errors import InvalidInputError
from aureole.training import FrozenHead

HELP = r"""Learn how sure each vector of a table is, from which rows belong together, and save the head.

Rows belong together that share a group (a label, a photo with several captions), or that a table of pairs names.
Vectors are a column of lists of floats in Parquet or Arrow files, an .npy or a .safetensors file, of any size.
A command that was stopped, even killed, goes on where it was when it is given again.

Examples:

    aureole fit-head vectors.parquet --group-column photo --out head
    aureole fit-head vectors.npy --columns-from labels.csv \
      --group-column label --out head
    aureole fit-head vectors.parquet --pairs clicks.parquet \
      --left query --right item --id-column id --out head
"""


def fit_head(
    vectors: Vectors,
    out: Annotated[Path, typer.Option(help="The folder to save the head in.")],
    vector_column: VectorColumn = None,
    group_column: GroupColumn = None,
    columns_from: ColumnsFrom = None,
    pairs: Annotated[
        Path | None, typer.Option(help="A table of pairs of partners, instead of groups.")
    ] = None,
    left: Annotated[str, typer.Option(help="A column of the pairs.")] = "left",
    right: Annotated[str, typer.Option(help="The other column of the pairs.")] = "right",
    id_column: Annotated[
        str | None,
        typer.Option(help="The ids that pairs name; default: they name row numbers, from 0 on."),
    ] = None,
    dim: Annotated[
        str | None, typer.Option(help='Dimensions of the posteriors, or "auto".', metavar="N|auto")
    ] = None,
    kappa_pos: Annotated[
        float | None, typer.Option(help="How close partners' latents are; default: as dim asks.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Batches to train on.")] = None,
    items: Annotated[int | None, typer.Option(min=4, help="Vectors a batch.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides everything random.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a head that is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Fit and save a head; ``HELP`` is what users read."""
    started = time.monotonic()
    check_out(out, "head", overwrite=overwrite)
    others = columns_from or vectors
    grouped = group_column is not None or (columns_from is not None and others.suffix in ARRAYS)
    if grouped == (pairs is not None):
        raise typer.BadParameter("give either --group-column or --pairs, one of the two.")
    given = {
        "dim": None if dim is None else _dim(dim),
        "kappa_pos": kappa_pos,
        "steps": steps,
        "items": items,
        "seed": seed,
    }
    head = FrozenHead(**{name: value for name, value in given.items() if value is not None})
    quiet = as_json or not sys.stderr.isatty()
    groups = read_groups(others, group_column) if grouped else None
    ids = (others, id_column) if id_column else None
    partners = read_pairs(pairs, left, right, ids=ids) if pairs else None
    columns = (vector_column, group_column, left, right, id_column)
    partial = _partial(out, [vectors, others, pairs], [*columns, head.get_params()])
    with rows_bar("reading", shown=not quiet) as observer:
        found = read_vectors(vectors, vector_column, work=partial, observer=observer)
    _check_rows(len(found), groups, partners, pairs)
    with training_bar("fitting", shown=not quiet) as observer:
        head.fit(
            found,
            groups,
            pairs=partners,
            checkpoint=partial / "checkpoint.safetensors",
            observer=observer,
        )
    head.save(out)
    shutil.rmtree(partial)
    results = {
        "head": str(out),
        "rows": len(found),
        **({"groups": len(np.unique(groups))} if groups is not None else {}),
        **({"pairs": len(partners)} if partners is not None else {}),
        "dim": head.dim_,
        "kappa_pos": head.kappa_pos_,
        "information": head.information_,
        "dims": [{"dim": d, "information": v} for d, v in head.dims_.items()],
        "profile": [{"kappa_pos": k, "information": v} for k, v in head.profile_.items()],
        "coverage": [{"mass": m, "measured": share} for m, share in head.coverage_.items()],
        "seconds": time.monotonic() - started,
    }
    if as_json:
        print_json(results)
    else:
        _show(head, len(found), out)


def _dim(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 2:
        raise typer.BadParameter(f'--dim must be a number from 2 on, or "auto", not {text!r}.')
    return int(text)


def _check_rows(
    rows: int, groups: np.ndarray | None, partners: np.ndarray | None, pairs: Path | None
) -> None:
    if groups is not None and len(groups) != rows:
        raise InvalidInputError(
            f"{rows} vectors need as many groups, but there are {len(groups)}: the files do not belong together."
        )
    if partners is not None and (partners >= rows).any():
        row = int((partners >= rows).any(1).argmax())
        raise InvalidInputError(
            f"row {row} of {pairs} (counted from 0) names row {partners[row].max()}, but there are {rows} vectors."
        )


def _partial(out: Path, files: list[Path | None], settings: list[Any]) -> Path:
    """The folder beside ``out`` of this very fit: of these files, as they are now, with these settings."""
    state = []
    for path in dict.fromkeys(path for path in files if path is not None):
        for file in table_files(path):
            facts = file.stat()
            state.append([str(file.resolve()), facts.st_size, facts.st_mtime_ns])
    digest = hashlib.sha256(json.dumps([state, settings]).encode()).hexdigest()
    return out.with_name(f"{out.name}.partial-{digest[:12]}")


def _show(head: FrozenHead, rows: int, out: Path) -> None:
    console = Console(highlight=False)
    console.print(
        f"{rows:,} rows; dim {head.dim_}; κ_pos {head.kappa_pos_:.4g}; "
        f"held-out information {head.information_:.3f} nats"
    )
    if head.dims_:
        dims = table("held-out information, short fits", "dim", "nats")
        for dim, information in head.dims_.items():
            dims.add_row(str(dim), f"{information:.3f}")
        console.print(dims)
    profile = table("held-out information", "κ_pos", "nats")
    for kappa_pos, information in head.profile_.items():
        profile.add_row(f"{kappa_pos:.4g}", f"{information:.3f}")
    console.print(profile)
    console.print(coverage_table(head.coverage_))
    console.print(f"saved in {out}", markup=False, soft_wrap=True)
