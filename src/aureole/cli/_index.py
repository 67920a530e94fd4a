"""``aureole index``: build, extend, inspect and speed up galleries of posteriors."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import typer
from typer import Argument, Option

from aureole.cli._gallery import (
    CHUNK,
    TableColumns,
    TablePosteriors,
    calibration,
    facts,
    head_origin,
    read_ids,
    read_payload,
    staged,
)
from aureole.cli._options import AsJson, Gallery, IndexSizes, KappaPos, RayAddress, expanded
from aureole.cli._output import is_quiet, print_json, print_text, rows_bar
from aureole.data import read_groups
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval import CredibleIndex, Origin, check_ids, engine_of, is_local, shown_address
from aureole.scale import build_lists

HELP = """Build a gallery for `aureole search`, append to it, or inspect it.

Its address selects the engine: a path that ends in .lance or .faiss, or postgresql://user@host/database#table.

Examples:

    aureole index build items.parquet --head head --out gallery.lance
    aureole index append new.parquet --head head --to gallery.lance
    aureole index info gallery.lance
"""
BUILD = r"""Build a gallery from a table of vectors and a head, or from a table of mu and kappa.

Rows are processed in chunks, so the table may be larger than memory. A folder is written atomically. For a database,
put the password in PGPASSWORD or ~/.pgpass, not in the address.

Examples:

    aureole index build items.parquet --head head --id-column id \
      --payload-column price --out gallery.lance
    aureole index build scored.parquet --id-column id --out gallery.faiss
    aureole index build items.parquet --head head --out gallery.lance \
      --conformal heldout.parquet --group-column g
"""
APPEND = r"""Append the rows of a table to a gallery, 65,536 at a time; each chunk is stored completely or not at all.

The rows must be produced by the same head as the gallery, and have the same payload columns.

Examples:

    aureole index append new.parquet --to gallery.lance --head head \
      --id-column id --payload-column price
"""
INFO = """Print facts about a gallery: rows, dimension, typical kappa, engine, columns, approximate index, calibration.

The gallery is only read.

Examples:

    aureole index info gallery.lance
    aureole index info postgresql://me@localhost/shop#gallery --json
"""
APPROXIMATE = r"""Build an approximate index on a gallery: searches are faster, but may miss members of a cap.

Prints the recall for 20 rows of the gallery. With several workers, or a cluster, Ray builds the lists of a Lance table,
each worker those of a part of the rows.

Examples:

    aureole index approximate photos.lance
    aureole index approximate photos.lance --probes 64 --workers 8 \
      --ray-address 10.0.0.1:6379
    aureole index approximate gallery.faiss --kind hnsw --width 256
"""
_QUERIES = 20  # rows of the gallery that measure the recall of an approximate index
_GOOD_RECALL = 0.99  # below it the output suggests what to change

index = typer.Typer(help=HELP, no_args_is_help=True, rich_markup_mode="markdown")
Table = Annotated[Path, Argument(help="Table: a file, or a folder of files.")]


@dataclass(frozen=True)
class CalibrationOptions:
    """The conformal calibration that `search --guarantee conformal` uses."""

    group_column: Annotated[
        str | None,
        Option(
            help="Calibrate search --guarantee conformal on pairs of rows of one group, held out from the head."
        ),
    ] = None
    conformal: Annotated[
        Path | None,
        Option(help="Table with these held-out groups (default: the gallery's own table)."),
    ] = None
    conformal_pairs: Annotated[
        int, Option(min=1, help="Maximum number of pairs, one per group.")
    ] = 500
    kappa_pos: KappaPos = None
    seed: Annotated[int, Option(min=0, help="Seed that selects the pairs.")] = 0


@index.command("build", help=BUILD)
@expanded
def build(
    *,
    table: Table,
    out: Annotated[
        str,
        Option(
            help="Path that ends in .lance or .faiss, or postgresql://user@host/db#table.",
            metavar="ADDRESS",
        ),
    ],
    columns: TableColumns,
    approximate: Annotated[
        Literal["ivf", "hnsw"] | None,
        Option(help="Also build an approximate index (default: searches are exact)."),
    ] = None,
    sizes: IndexSizes,
    calibrate: CalibrationOptions,
    as_json: AsJson = False,
) -> None:
    """Build a gallery; ``BUILD`` is the text users see."""
    started = time.monotonic()
    if out == "faiss://":
        raise typer.BadParameter(
            "faiss:// is an index in memory and would be lost. Choose a path that ends in .faiss."
        )
    if calibrate.conformal is not None and calibrate.group_column is None:
        raise typer.BadParameter("--conformal needs --group-column, which defines the positives.")
    given = sizes.given(approximate)
    origin = head_origin(columns.head)
    if calibrate.kappa_pos is not None:
        origin = Origin(calibrate.kappa_pos, origin.weights)
    if calibrate.group_column is not None and origin.kappa_pos is None:
        raise typer.BadParameter("a calibration needs --kappa-pos, or --head, which has one.")
    shown = not is_quiet(as_json=as_json)
    with staged(out) as place:
        source, ids, payload = _read(table, columns, out, shown=shown)
        with rows_bar("scoring", len(source), shown=shown) as observer:
            typical = source.typical_kappa(observer)
        made = None
        for rows, part in _parts(out, len(source), payload, shown=shown):
            if made is None:
                made = CredibleIndex.create(
                    place, source[rows], ids[rows], part, typical_kappa=typical
                )
            else:
                made.append(source[rows], ids[rows], part)
        assert made is not None  # the reader refuses a table without rows
        with made:
            made.origin = origin
            if calibrate.group_column is not None:
                _calibrate(made, source, table, columns, calibrate)
            result = facts(made, out)
            if approximate is not None:
                made.build(approximate, **given)
                every = max(1, len(source) // _QUERIES)
                queries = source[slice(0, every * _QUERIES, every)]
                recall = made.check_recall(queries, least=0.0)
                result |= {"approximate": made.approximate, "recall": recall.share}
    show_facts(result | {"seconds": time.monotonic() - started}, as_json=as_json)


@index.command("append", help=APPEND)
@expanded
def append(
    table: Table,
    gallery: Annotated[str, Option("--to", help="Address of the gallery.", metavar="ADDRESS")],
    columns: TableColumns,
    as_json: AsJson = False,
) -> None:
    """Append to a gallery; ``APPEND`` is the text users see."""
    started = time.monotonic()
    shown = not is_quiet(as_json=as_json)
    with CredibleIndex.open(gallery) as opened:
        if columns.head is not None:
            weights = head_origin(columns.head).weights or ""
            opened.origin.check_same(weights, f"the head in {columns.head}")
        source, ids, payload = _read(table, columns, gallery, shown=shown)
        for rows, part in _parts(gallery, len(source), payload, shown=shown):
            try:
                opened.append(source[rows], ids[rows], part)
            except InvalidInputError as error:
                if not rows.start:
                    raise
                raise InvalidInputError(
                    f"{error} The rows of {table} before row {rows.start} (counted from 0) were appended."
                ) from error
        result = facts(opened, gallery)
    result |= {"appended": len(source), "seconds": time.monotonic() - started}
    show_facts(result, as_json=as_json)


@index.command("info", help=INFO)
def info(gallery: Gallery, as_json: AsJson = False) -> None:
    """Print facts about a gallery; ``INFO`` is the text users see."""
    with CredibleIndex.open(gallery) as opened:
        result = facts(opened, gallery)
    show_facts(result, as_json=as_json)


@index.command("approximate", help=APPROXIMATE)
@expanded
def approximate(
    *,
    gallery: Gallery,
    kind: Annotated[Literal["ivf", "hnsw"], Option(help="Inverted lists, or a graph.")] = "ivf",
    sizes: IndexSizes,
    workers: Annotated[int, Option(min=1, help="Number of processes.")] = 1,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
) -> None:
    """Build an approximate index; ``APPROXIMATE`` is the text users see."""
    started = time.monotonic()
    given = sizes.given(kind)
    parallel = workers > 1 or ray_address is not None
    if parallel and kind != "ivf":
        raise typer.BadParameter("several workers can only build --kind ivf.")
    with CredibleIndex.open(gallery) as opened:
        if not opened.count():
            raise InvalidInputError(f"{shown_address(gallery)} has no rows to index.")
        if parallel:
            with redirect_stdout(sys.stderr):  # Ray prints warnings there
                build_lists(gallery, workers=workers, address=ray_address, **given)
        else:
            opened.build(kind, **given)
        seconds = time.monotonic() - started
        posteriors, _ = opened.fetch(_sample_ids(opened))
        recall = opened.check_recall(posteriors, least=0.0)
        result = facts(opened, gallery)
    show_facts({**result, "recall": recall.share, "seconds": seconds}, as_json=as_json)


def _read(
    table: Path, columns: TableColumns, gallery: str, *, shown: bool
) -> tuple[TablePosteriors, list[str], dict[str, list[Any]]]:
    """The posteriors, ids and payload of a table."""
    others = columns.columns_from or table
    work = Path(gallery).parent if is_local(gallery) else None
    with rows_bar("reading", shown=shown) as observer:
        source = TablePosteriors(table, columns, work=work, observer=observer)
    ids = check_ids(read_ids(others, columns.id_column, len(source)))
    return source, ids, read_payload(others, columns.payload_column or [], len(source))


def _parts(
    gallery: str, count: int, payload: dict[str, list[Any]], *, shown: bool
) -> Iterator[tuple[slice, dict[str, list[Any]]]]:
    """(Rows, their payload), chunk by chunk, with a progress bar; one chunk for FAISS, which rewrites all rows."""
    size = count if engine_of(gallery).engine == "FAISS" else CHUNK
    observer: Callable[[int], None]
    with rows_bar("storing", count, shown=shown) as observer:
        for first in range(0, count, size):
            rows = slice(first, min(first + size, count))
            yield rows, {name: values[rows] for name, values in payload.items()}
            observer(rows.stop)


def _calibrate(
    made: CredibleIndex,
    source: TablePosteriors,
    table: Path,
    columns: TableColumns,
    options: CalibrationOptions,
) -> None:
    """Calibrate the gallery on pairs of the held-out table, or of its own."""
    held_out = source
    if options.conformal is not None:
        held_out = TablePosteriors(options.conformal, columns, work=source.work)
    groups_from = options.conformal or columns.columns_from or table
    assert made.origin.kappa_pos is not None  # checked before anything was read
    made.conformal = calibration(
        held_out,
        read_groups(groups_from, options.group_column),
        kappa_pos=made.origin.kappa_pos,
        kappa_other=source.typical_kappa(),
        most=options.conformal_pairs,
        seed=options.seed,
    )


def _sample_ids(opened: CredibleIndex) -> list[str]:
    """The rows nearest to a few random directions."""
    rng = torch.Generator().manual_seed(0)
    mu = torch.nn.functional.normalize(
        torch.randn(_QUERIES, opened.schema.dim, generator=rng), dim=-1
    )
    hits = opened.search(VonMisesFisher(mu, 0.0), 1.0, limit=1, exact=True)
    assert isinstance(hits, list)
    return sorted({nearest.ids[0] for nearest in hits})


def show_facts(result: dict[str, Any], *, as_json: bool) -> None:
    """Print facts about a gallery, as text or as JSON."""
    if as_json:
        print_json(result)
        return
    added = f"{result['appended']:,} rows appended; " if "appended" in result else ""
    kappa_pos = "" if result["kappa_pos"] is None else f"; κ_pos {result['kappa_pos']:.4g}"
    columns = ", ".join(f"{name} ({kind})" for name, kind in result["columns"].items())
    print_text(
        f"{added}{result['rows']:,} rows in R^{result['dim']} in {result['gallery']} ({result['engine']})",
        f"typical κ {result['typical_kappa']:.4g}{kappa_pos}",
        f"payload: {columns or 'none'}",
    )
    approximate = result["approximate"]
    if approximate is None:
        print_text("every search is exact")
    else:
        sizes = ", ".join(f"{name} {size}" for name, size in approximate.items() if name != "kind")
        print_text(f"approximate index {approximate['kind']}{f' ({sizes})' if sizes else ''}")
        if "recall" in result:
            print_text(
                f"recall {100 * result['recall']:.2f} % of the members of the caps of {_QUERIES} rows"
            )
        if result.get("recall", 1.0) < _GOOD_RECALL:
            print_text(
                "The recall is low: rebuild with more --probes or --width, or search with --exact."
            )
    held = result["conformal"]
    if held is None:
        print_text("no conformal calibration")
    else:
        print_text(
            f"conformal calibration on {held['pairs']:,} pairs: guarantees up to mass {held['largest_mass']:.4g}"
        )
