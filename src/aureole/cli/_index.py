"""``aureole index``: galleries of posteriors, made of tables, added to, and looked at."""

import sys
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from aureole.cli._gallery import (
    CHUNK,
    TablePosteriors,
    calibration,
    facts,
    head_origin,
    read_ids,
    read_payload,
    staged,
)
from aureole.cli._options import (
    AsJson,
    ColumnsFrom,
    IdColumn,
    Links,
    Lists,
    OptionalHead,
    Probes,
    VectorColumn,
    Width,
)
from aureole.cli._progress import rows_bar
from aureole.cli._results import print_json
from aureole.data import read_groups
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex, Origin, check_ids, is_local
from aureole.training import FrozenHead

BUILD = r"""Make a gallery of a table of vectors and a head, or of a table of mu and kappa.

Vectors become posteriors piece by piece, so that tables larger than memory will do. A folder is there when it is whole,
or not at all. In the address of a database leave the password to PGPASSWORD or ~/.pgpass.

Examples:

    aureole index build items.parquet --head head --id-column id \
      --payload-column price --out gallery.lance
    aureole index build scored.parquet --id-column id --out gallery.faiss
    aureole index build items.parquet --head head --out gallery.lance \
      --conformal heldout.parquet --group-column g
"""
APPEND = r"""Add the rows of a table to a gallery, 65,536 at a time, each time all of them or none.

They must come of the head that made the gallery, and have the payload columns that it has.

Examples:

    aureole index append new.parquet --to gallery.lance --head head \
      --id-column id --payload-column price
"""

INFO = """Say what a gallery holds: rows, dimension, typical kappa, engine, columns, approximate index, calibration.

It is opened to be read and is not changed.

Examples:

    aureole index info gallery.lance
    aureole index info postgresql://me@localhost/shop#gallery --json
"""
HELP = """Make a gallery that `aureole search` searches, add to it, or look at it.

Its address decides the engine: a path that ends in .lance or .faiss, or postgresql://user@host/database#table.

Examples:

    aureole index build items.parquet --head head --out gallery.lance
    aureole index append new.parquet --head head --to gallery.lance
    aureole index info gallery.lance
"""

index = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
QUERIES = 20  # rows of the gallery by which an approximate index is checked
_GOOD = 0.99  # the share of members below which people are told what to do

Table = Annotated[Path, typer.Argument(help="A table: a file, or a folder of files.")]
MuColumn = Annotated[
    str, typer.Option(help="Without --head: the column of mu, as score --with-mu writes it.")
]
KappaColumn = Annotated[str, typer.Option(help="Without --head: the column of kappa.")]
PayloadColumn = Annotated[
    list[str] | None,
    typer.Option(help="A column to keep with the rows, to filter by and to show; repeatable.",
                 metavar="COLUMN|NAME=COLUMN"),
]  # fmt: skip


@index.command("build", help=BUILD)
def build(
    table: Table,
    out: Annotated[
        str,
        typer.Option(
            help="A path that ends in .lance or .faiss, or postgresql://user@host/db#table.",
            metavar="ADDRESS",
        ),
    ],
    head: OptionalHead = None,
    vector_column: VectorColumn = None,
    mu_column: MuColumn = "mu",
    kappa_column: KappaColumn = "kappa",
    id_column: IdColumn = None,
    columns_from: ColumnsFrom = None,
    payload_column: PayloadColumn = None,
    approximate: Annotated[
        Literal["ivf", "hnsw"] | None,
        typer.Option(help="Build such an index, for speed; default: every search is exact."),
    ] = None,
    lists: Lists = None,
    probes: Probes = None,
    links: Links = None,
    width: Width = None,
    group_column: Annotated[
        str | None,
        typer.Option(
            help="Calibrate --guarantee conformal by pairs of rows of one group, which the head has not seen."
        ),
    ] = None,
    conformal: Annotated[
        Path | None,
        typer.Option(help="The table with these held-out groups, if it is not the gallery's own."),
    ] = None,
    conformal_pairs: Annotated[
        int, typer.Option(min=1, help="The most pairs to calibrate by, one of each group.")
    ] = 500,
    kappa_pos: Annotated[
        float | None,
        typer.Option(min=0, help="How close partners' latents are; default: the head's."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides which pairs calibrate.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Build a gallery; ``BUILD`` is what users read."""
    started = time.monotonic()
    if out == "faiss://":
        raise typer.BadParameter(
            "faiss:// lives in memory: it would be gone at once. Name a path that ends in .faiss."
        )
    if conformal is not None and group_column is None:
        raise typer.BadParameter(
            "--conformal needs --group-column, which says what belongs together."
        )
    sizes = sizes_of(approximate, lists, probes, links, width)
    quiet = as_json or not sys.stderr.isatty()
    fitted = None if head is None else FrozenHead.load(head)
    origin = Origin(kappa_pos) if head is None or fitted is None else head_origin(head, fitted)
    if kappa_pos is not None:
        origin = Origin(kappa_pos, origin.weights)
    if group_column is not None and origin.kappa_pos is None:
        raise typer.BadParameter("a calibration needs --kappa-pos, or --head, which has one.")
    columns = (mu_column if head is None else vector_column, kappa_column)
    others, work = columns_from or table, Path(out).parent if is_local(out) else None
    with staged(out) as place:
        with rows_bar("reading", shown=not quiet) as observer:
            source = TablePosteriors(table, fitted, columns, work=work, observer=observer)
        ids = check_ids(read_ids(others, id_column, len(source)))
        payload = read_payload(others, payload_column or [], len(source))
        with rows_bar("scoring", len(source), shown=not quiet) as observer:
            typical = source.typical_kappa(observer)
        with rows_bar("storing", len(source), shown=not quiet) as observer:
            made = None
            for rows in _slices(len(source)):
                part = {name: values[rows] for name, values in payload.items()}
                if made is None:
                    made = CredibleIndex.create(
                        place, source[rows], ids[rows], part, typical_kappa=typical
                    )
                else:
                    made.append(source[rows], ids[rows], part)
                observer(rows.stop)
        assert made is not None  # a table without rows is refused by its reader
        with made:
            made.origin = origin
            if group_column is not None and origin.kappa_pos is not None:
                held = (
                    source
                    if conformal is None
                    else TablePosteriors(conformal, fitted, columns, work=work)
                )
                made.conformal = calibration(
                    held,
                    read_groups(conformal or others, group_column),
                    kappa_pos=origin.kappa_pos,
                    kappa_other=typical,
                    most=conformal_pairs,
                    seed=seed,
                )
            found = facts(made, out)
            if approximate is not None:
                found |= _approximated(made, source, approximate, sizes)
    found["seconds"] = time.monotonic() - started
    show_facts(found, as_json=as_json)


@index.command("append", help=APPEND)
def append(
    table: Table,
    gallery: Annotated[str, typer.Option("--to", help="The gallery's address.", metavar="ADDRESS")],
    head: OptionalHead = None,
    vector_column: VectorColumn = None,
    mu_column: MuColumn = "mu",
    kappa_column: KappaColumn = "kappa",
    id_column: IdColumn = None,
    columns_from: ColumnsFrom = None,
    payload_column: PayloadColumn = None,
    as_json: AsJson = False,
) -> None:
    """Append to a gallery; ``APPEND`` is what users read."""
    started = time.monotonic()
    quiet = as_json or not sys.stderr.isatty()
    fitted = None if head is None else FrozenHead.load(head)
    columns = (mu_column if head is None else vector_column, kappa_column)
    others, work = columns_from or table, Path(gallery).parent if is_local(gallery) else None
    with CredibleIndex.open(gallery) as found:
        if head is not None and fitted is not None:
            found.origin.check_same(head_origin(head, fitted).weights or "", f"what {head} holds")
        with rows_bar("reading", shown=not quiet) as observer:
            source = TablePosteriors(table, fitted, columns, work=work, observer=observer)
        ids = check_ids(read_ids(others, id_column, len(source)))
        payload = read_payload(others, payload_column or [], len(source))
        with rows_bar("storing", len(source), shown=not quiet) as observer:
            for rows in _slices(len(source)):
                part = {name: values[rows] for name, values in payload.items()}
                try:
                    found.append(source[rows], ids[rows], part)
                except InvalidInputError as error:
                    if not rows.start:
                        raise
                    raise InvalidInputError(
                        f"{error} The rows of {table} before row {rows.start} (counted from 0) are in the gallery."
                    ) from error
                observer(rows.stop)
        result = facts(found, gallery)
    result |= {"appended": len(source), "seconds": time.monotonic() - started}
    show_facts(result, as_json=as_json)


@index.command("info", help=INFO)
def info(
    gallery: Annotated[str, typer.Argument(help="The gallery's address.", metavar="ADDRESS")],
    as_json: AsJson = False,
) -> None:
    """Say what a gallery holds; ``INFO`` is what users read."""
    with CredibleIndex.open(gallery) as found:
        result = facts(found, gallery)
    show_facts(result, as_json=as_json)


def sizes_of(
    kind: str | None, lists: int | None, probes: int | None, links: int | None, width: int | None
) -> dict[str, int]:
    """The sizes of an approximate index that were given; refused where they do not go with its kind."""
    given = {"lists": lists, "probes": probes, "links": links, "width": width}
    sizes = {name: size for name, size in given.items() if size is not None}
    allowed = {None: set(), "ivf": {"lists", "probes"}, "hnsw": {"links", "width"}}[kind]
    if not sizes.keys() <= allowed:
        raise typer.BadParameter(
            "--lists and --probes go with --approximate ivf, --links and --width with hnsw."
        )
    return sizes


def _slices(rows: int) -> list[slice]:
    return [slice(first, min(first + CHUNK, rows)) for first in range(0, rows, CHUNK)]


def _approximated(
    made: CredibleIndex,
    source: TablePosteriors,
    kind: Literal["ivf", "hnsw"],
    sizes: dict[str, int],
) -> dict[str, Any]:
    """Build the approximate index, and say how many members of some rows' caps it finds."""
    made.build(kind, **sizes)
    every = max(1, len(source) // QUERIES)
    recall = made.check_recall(source[slice(0, every * QUERIES, every)], least=0.0)
    return {"approximate": made.approximate, "recall": recall.share}


def show_facts(found: dict[str, Any], *, as_json: bool) -> None:
    """Print what is known of a gallery, for people or as JSON."""
    if as_json:
        print_json(found)
        return
    console = Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(text, markup=False)

    added = f"{found['appended']:,} rows appended; " if "appended" in found else ""
    say(
        f"{added}{found['rows']:,} rows in R^{found['dim']} in {found['gallery']} ({found['engine']})"
    )
    kappa_pos = "" if found["kappa_pos"] is None else f"; κ_pos {found['kappa_pos']:.4g}"
    say(f"typical κ {found['typical_kappa']:.4g}{kappa_pos}")
    columns = ", ".join(f"{name} ({kind})" for name, kind in found["columns"].items())
    say(f"payload: {columns or 'none'}")
    index = found["approximate"]
    if index is None:
        say("every search is exact")
    else:
        sizes = ", ".join(f"{name} {size}" for name, size in index.items() if name != "kind")
        say(f"approximate index {index['kind']}{f' ({sizes})' if sizes else ''}")
        if "recall" in found:
            say(
                f"it finds {100 * found['recall']:.2f} % of the members of the caps of {QUERIES} rows"
            )
        if found.get("recall", 1.0) < _GOOD:
            say("That is little: build with more --probes or --width, or search with --exact.")
    held = found["conformal"]
    if held is None:
        say("no conformal calibration")
    else:
        say(
            f"conformal calibration by {held['pairs']:,} pairs: guarantees up to mass {held['largest_mass']:.4g}"
        )
