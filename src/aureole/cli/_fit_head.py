"""``aureole fit-head``: fit a head on a table of vectors; resumes after an interruption."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from typer import Option

from aureole.cli._options import (
    AsJson,
    GroupedVectors,
    Vectors,
    check_out,
    expanded,
    option,
    run_digest,
)
from aureole.cli._output import coverage_table, is_quiet, print_json, rows_bar, table, training_bar
from aureole.data import ARRAYS, read_groups, read_pairs, read_vectors, table_files
from aureole.errors import InvalidInputError
from aureole.training import FrozenHead

HELP = r"""Fit a head that predicts how certain each vector of a table is, from positives, and save it.

Positives are rows that share a group (a label, a photo with several captions), or that a table of pairs names.
Vectors are a column of lists of floats in Parquet or Arrow files, or an .npy or .safetensors file, of any size.
If the command is interrupted, even killed, run it again to resume.

Examples:

    aureole fit-head vectors.parquet --group-column photo --out head
    aureole fit-head vectors.npy --columns-from labels.csv \
      --group-column label --out head
    aureole fit-head vectors.parquet --pairs clicks.parquet \
      --left query --right item --id-column id --out head
"""


@dataclass(frozen=True)
class PairOptions:
    """Positives as a table of pairs."""

    pairs: Path | None = option("Table of pairs of positives, instead of groups.")
    left: str = option("First column of the pairs.", "left")
    right: str = option("Second column of the pairs.", "right")
    id_column: str | None = option("Column of the ids in the pairs (default: row numbers from 0).")


@dataclass(frozen=True)
class FitOptions:
    """The head and its training."""

    dim: str | None = option('Dimension of the posteriors, or "auto".', metavar="N|auto")
    kappa_pos: float | None = option(
        "Concentration of positives around latents (default: 2 * dim)."
    )
    steps: int | None = option("Number of training steps.", min=1)
    items: int | None = option("Vectors per batch.", min=4)
    seed: int = option("Random seed.", 0, min=0)

    def head(self) -> FrozenHead:
        """An unfitted head with the options that were given."""
        given: dict[str, Any] = vars(self) | {"dim": None if self.dim is None else _dim(self.dim)}
        return FrozenHead(**{name: value for name, value in given.items() if value is not None})


@expanded
def fit_head(
    vectors: Vectors,
    out: Annotated[Path, Option(help="Folder to save the head in.")],
    columns: GroupedVectors,
    pairing: PairOptions,
    fit: FitOptions,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace an existing head.")] = False,
    as_json: AsJson = False,
) -> None:
    """Fit and save a head; ``HELP`` is the text users see."""
    started = time.monotonic()
    check_out(out, "head", overwrite=overwrite)
    others, pairs = columns.columns_from or vectors, pairing.pairs
    in_array = columns.columns_from is not None and others.suffix in ARRAYS
    grouped = columns.group_column is not None or in_array
    if grouped == (pairs is not None):
        raise typer.BadParameter("use either --group-column or --pairs.")
    head, shown = fit.head(), not is_quiet(as_json=as_json)
    groups = read_groups(others, columns.group_column) if grouped else None
    ids = (others, pairing.id_column) if pairing.id_column else None
    partners = read_pairs(pairs, (pairing.left, pairing.right), ids=ids) if pairs else None
    files = [file for path in (vectors, others, pairs) if path for file in table_files(path)]
    names = (columns.vector_column, columns.group_column)
    names += (pairing.left, pairing.right, pairing.id_column)
    digest = run_digest([*names, head.get_params()], files)
    partial = out.with_name(f"{out.name}.partial-{digest}")
    with rows_bar("reading", shown=shown) as observer:
        rows = read_vectors(vectors, columns.vector_column, work=partial, observer=observer)
    if groups is not None and len(groups) != len(rows):
        raise InvalidInputError(
            f"there are {len(rows)} vectors, but {len(groups)} groups: the files do not match row by row."
        )
    if partners is not None and (partners >= len(rows)).any():
        row = int((partners >= len(rows)).any(1).argmax())
        raise InvalidInputError(
            f"row {row} of {pairs} (counted from 0) refers to row {partners[row].max()}, but there are {len(rows)} "
            "vectors."
        )
    with training_bar("fitting", shown=shown) as observer:
        checkpoint = partial / "checkpoint.safetensors"
        head.fit(rows, groups, pairs=partners, checkpoint=checkpoint, observer=observer)
    head.save(out)
    shutil.rmtree(partial)
    if not as_json:
        _show(head, len(rows), out)
        return
    print_json(
        {
            "head": str(out),
            "rows": len(rows),
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
    )


def _dim(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdecimal() or int(text) < 2:
        raise typer.BadParameter(f'--dim must be an integer of 2 or more, or "auto", not {text!r}.')
    return int(text)


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
