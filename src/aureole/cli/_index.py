"""``aureole index``: build, extend, inspect and speed up galleries of posteriors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import aureole as au
from aureole._io import atomic_folder
from aureole.cli._gallery_facts import RECALL_QUERIES, gallery_facts, recall_facts, show_facts
from aureole.cli._inputs import IMAGE, EncoderSpec, InputOptions, is_pictures
from aureole.cli._lazy import np, torch
from aureole.cli._options import (
    AsJson,
    ColumnsFrom,
    Gallery,
    IdColumn,
    IndexSizes,
    KappaPos,
    Normalized,
    OptionalHead,
    VectorColumn,
    expanded,
    option,
)
from aureole.cli._output import rows_bar
from aureole.engines._addresses import is_local, shown_address
from aureole.engines._engines import engine_of
from aureole.errors import InvalidInputError
from aureole.records import file_hash

HELP = """Build a gallery for `aureole search`, append to it, or inspect it.

Its address selects the engine: a path that ends in .lance or .faiss, or postgresql://user@host/database#table.

Examples:

    aureole index build items.parquet --head head --out gallery.lance
    aureole index append new.parquet --head head --to gallery.lance
    aureole index info gallery.lance
    aureole index check gallery.lance
"""
BUILD = r"""Build a gallery from a table of vectors, texts or pictures and a head, or from a table of mu and kappa.

Rows are processed in chunks, so the table may be larger than memory. A folder is written atomically. For a database,
put the password in PGPASSWORD or ~/.pgpass, not in the address.

Examples:

    aureole index build items.parquet --head head --id-column id \
      --payload-column price --out gallery.lance
    aureole index build captions.csv --text-column caption --head head \
      --encoder sentence-transformers:all-MiniLM-L6-v2 \
      --payload-column caption --out captions.lance
    aureole index build photos/ --encoder timm:resnet50 --head head \
      --payload-column label --out photos.lance
    aureole index build scored.parquet --id-column id --out gallery.faiss
    aureole index build items.parquet --head head --out gallery.lance \
      --conformal heldout.parquet --group-column g
"""
APPEND = r"""Append the rows of a table to a gallery, 65,536 at a time; each chunk is written atomically.

The rows must be produced by the same head as the gallery, and have the same payload columns. An id that exists is an
error, unless you pass --replace.

Examples:

    aureole index append new.parquet --to gallery.lance --head head \
      --id-column id --payload-column price
    aureole index append changed.parquet --to gallery.lance --head head \
      --replace
"""
APPROXIMATE = r"""Build an approximate index on a gallery: searches are faster, but may miss members of a cap.

Prints the recall for 20 rows of the gallery.

Examples:

    aureole index approximate photos.lance
    aureole index approximate photos.lance --probes 64
    aureole index approximate gallery.faiss --kind hnsw --width 256
"""
CHUNK = 65_536  # rows per append

index = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
Table = Annotated[Path, Argument(help="Table: a file, a folder of files, or a folder of pictures.")]


@dataclass(frozen=True)
class TableColumns:
    """How to read posteriors, ids and payload from a table."""

    head: OptionalHead = None
    encoder: EncoderSpec = None
    text_column: str | None = option("With --encoder: column of texts.")
    image_column: str | None = option("With --encoder: column of pictures, bytes or paths.")
    normalized: Normalized = None
    vector_column: VectorColumn = None
    mu_column: str = option("Without --head: column of mu (score --with-mu).", "mu")
    kappa_column: str = option("Without --head: column of kappa.", "kappa")
    id_column: IdColumn = None
    columns_from: ColumnsFrom = None
    payload_column: list[str] | None = option(
        "Column to store with the rows, for filters and display; repeatable.",
        metavar="COLUMN|NAME=COLUMN",
    )

    @property
    def inputs(self) -> InputOptions:
        """The options of the encoder."""
        return InputOptions(self.encoder, self.text_column, self.image_column, self.normalized)

    def check(self, table: Path) -> None:
        """Raise for options that contradict each other and columns that do not exist."""
        if self.encoder is not None and self.head is None:
            raise typer.BadParameter(
                "--encoder needs --head. For a model that returns posteriors, use aureole embed."
            )
        if self.encoder is None and (self.text_column or self.image_column):
            raise typer.BadParameter("--text-column and --image-column need --encoder.")
        if self.encoder is not None:
            self.inputs.check(table, vector_column=self.vector_column)
        payload = [text.partition("=")[2] or text for text in self.payload_column or []]
        au.data._tables.check_columns(self.columns_from or table, self.id_column, *payload)


@dataclass(frozen=True)
class CalibrationOptions:
    """The conformal calibration that `search --guarantee conformal` uses."""

    group_column: str | None = option(
        "Calibrate search --guarantee conformal on pairs of rows of one group, held out from the head."
    )
    conformal: Path | None = option(
        "Table with these held-out groups (default: the gallery's own table)."
    )
    conformal_pairs: int = option("Maximum number of pairs, one per group.", 500, min=1)
    kappa_pos: KappaPos = None
    seed: int = option("Seed that selects the pairs.", 0, min=0)


class TablePosteriors:
    """The posteriors of a table: a head's predictions for its vectors, or its own columns of mu and kappa.

    ``source[rows]`` returns some rows; memory does not grow with the table.
    """

    def __init__(
        self,
        path: Path,
        columns: TableColumns,
        *,
        encoder: au.encoders.Encoder | None = None,
        work: Path | None = None,
        shown: bool = False,
    ) -> None:
        self._head = None if columns.head is None else au.FrozenHead.load(columns.head)
        name = columns.mu_column if self._head is None else columns.vector_column
        self.work, self.encoder = work, encoder
        inputs = columns.inputs
        self._vectors = inputs.vectors(path, encoder, name, work=work, shown=shown)
        self.kappa = np.zeros(0, np.float32)
        if self._head is None:
            name = columns.kappa_column
            values = _complete(path, name, len(self._vectors), numbers=True)
            if values.dtype.kind not in "fiu":
                raise InvalidInputError(
                    f"kappa must be a column of numbers, but {name!r} of {path} has type {values.dtype}."
                )
            self.kappa = values.astype(np.float32)

    def __len__(self) -> int:
        return len(self._vectors)

    def __getitem__(self, rows: Any) -> au.VonMisesFisher:
        part = np.ascontiguousarray(self._vectors[rows])
        if self._head is not None:
            return self._head.predict(part)
        return au.VonMisesFisher(torch.from_numpy(part), torch.from_numpy(self.kappa[rows]))

    def typical_kappa(self, observer: Callable[[int], None] | None = None) -> float:
        """The median kappa of all rows."""
        from aureole.training._assessment import kappas

        if self._head is not None and not len(self.kappa):
            self.kappa = kappas(self._head, self._vectors, observer=observer)
        return float(np.median(self.kappa))


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
            "faiss:// is an index in memory and would be lost: choose a path that ends in .faiss."
        )
    if calibrate.conformal is not None and calibrate.group_column is None:
        raise typer.BadParameter("--conformal needs --group-column, which defines the positives.")
    given = sizes.given(approximate)
    columns.check(table)
    origin = _head_origin(columns.head)
    if calibrate.kappa_pos is not None:
        origin = replace(origin, kappa_pos=calibrate.kappa_pos)
    if calibrate.group_column is not None and origin.kappa_pos is None:
        raise typer.BadParameter("a calibration needs --kappa-pos, or --head, which has one.")
    shown = not as_json
    encoder = columns.inputs.load(columns.head)
    if encoder is not None:
        origin = replace(origin, encoder=encoder.fingerprint)
    with _staged(out) as place:
        source, ids, payload = _read(table, columns, out, encoder, shown=shown)
        with rows_bar("scoring", len(source), shown=shown) as observer:
            typical = source.typical_kappa(observer)
        made = None
        for rows, part in _parts(engine_of(out).engine, len(source), payload, shown=shown):
            if made is None:
                first = (source[rows], ids[rows], part)
                made = au.CredibleIndex.create(place, *first, typical_kappa=typical)
            else:
                made.append(source[rows], ids[rows], part)
        assert made is not None  # the reader refuses a table without rows
        with made:
            made.origin = origin
            if calibrate.group_column is not None:
                _calibrate(made, source, table, columns, calibrate)
            result = gallery_facts(made, out)
            if approximate is not None:
                made.build(approximate, **given)
                every = max(1, len(source) // RECALL_QUERIES)
                queries = source[slice(0, every * RECALL_QUERIES, every)]
                recall = made.check_recall(queries, least=0.0)
                result |= {"approximate": made.approximate, **recall_facts(recall)}
    show_facts(result | {"seconds": time.monotonic() - started}, as_json=as_json)


@index.command("append", help=APPEND)
@expanded
def append(
    table: Table,
    gallery: Annotated[str, Option("--to", help="Address of the gallery.", metavar="ADDRESS")],
    columns: TableColumns,
    replace: Annotated[
        bool, Option("--replace", help="Replace rows whose id exists already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Append to a gallery; ``APPEND`` is the text users see."""
    started = time.monotonic()
    shown = not as_json
    columns.check(table)
    with au.CredibleIndex.open(gallery) as opened:
        encoder = columns.inputs.load(columns.head)
        if columns.head is not None:
            own = _head_origin(columns.head)
            fingerprint = own.encoder if encoder is None else encoder.fingerprint
            who = f"the head in {columns.head}"
            opened.origin.check_same(own.weights or "", who, encoder=fingerprint)
        source, ids, payload = _read(table, columns, gallery, encoder, shown=shown)
        store = opened.upsert if replace else opened.append
        replaced = 0
        for rows, part in _parts(opened.engine, len(source), payload, shown=shown):
            try:
                replaced += store(source[rows], ids[rows], part) or 0
            except InvalidInputError as error:
                if not rows.start:
                    raise
                raise InvalidInputError(
                    f"{error} The rows of {table} before row {rows.start} (counted from 0) were appended."
                ) from error
        result = gallery_facts(opened, gallery)
    result |= {"appended": len(source) - replaced, "replaced": replaced}
    result["seconds"] = time.monotonic() - started
    show_facts(result, as_json=as_json)


@index.command("approximate", help=APPROXIMATE)
@expanded
def approximate(
    *,
    gallery: Gallery,
    kind: Annotated[Literal["ivf", "hnsw"], Option(help="Inverted lists, or a graph.")] = "ivf",
    sizes: IndexSizes,
    as_json: AsJson = False,
) -> None:
    """Build an approximate index; ``APPROXIMATE`` is the text users see."""
    started = time.monotonic()
    given = sizes.given(kind)
    with au.CredibleIndex.open(gallery) as opened:
        if not opened.count():
            raise InvalidInputError(f"{shown_address(gallery)} has no rows to index.")
        opened.build(kind, **given)
        seconds = time.monotonic() - started
        posteriors, _ = opened.fetch(_sample_ids(opened))
        recall = opened.check_recall(posteriors, least=0.0)
        result = gallery_facts(opened, gallery) | recall_facts(recall) | {"seconds": seconds}
    show_facts(result, as_json=as_json)


def _read(
    table: Path,
    columns: TableColumns,
    gallery: str,
    encoder: au.encoders.Encoder | None,
    *,
    shown: bool,
) -> tuple[TablePosteriors, list[str], dict[str, list[Any]]]:
    """The posteriors, ids (row numbers if there is no column of ids) and payload of a table."""
    others = columns.columns_from or table
    work = Path(gallery).parent if is_local(gallery) else None
    source = TablePosteriors(table, columns, encoder=encoder, work=work, shown=shown)
    ids = [str(row) for row in range(len(source))]
    id_column = columns.id_column
    if id_column is None and columns.columns_from is None and is_pictures(table):
        id_column = IMAGE
    if id_column is not None:
        values = _complete(others, id_column, len(source))
        if values.dtype.kind not in "OUiu":
            raise InvalidInputError(
                f"ids must be strings or integers, but the column {id_column!r} of {others} has type "
                f"{values.dtype}."
            )
        from aureole.engines._schema import check_ids

        ids = check_ids([str(value) for value in values.tolist()])
    payload: dict[str, list[Any]] = {}
    for text in columns.payload_column or []:
        name, _, column = text.partition("=")  # NAME=COLUMN stores a column under another name
        if name in payload:
            raise InvalidInputError(f"the payload column {name!r} is given twice.")
        payload[name] = _complete(others, column or name, len(source), numbers=True).tolist()
    return source, ids, payload


def _parts(
    engine: str, count: int, payload: dict[str, list[Any]], *, shown: bool
) -> Iterator[tuple[slice, dict[str, list[Any]]]]:
    """(Rows, their payload), chunk by chunk, with a progress bar; one chunk for FAISS, which rewrites all rows."""
    size = count if engine == "FAISS" else CHUNK
    with rows_bar("storing", count, shown=shown) as observer:
        for first in range(0, count, size):
            rows = slice(first, min(first + size, count))
            yield rows, {name: values[rows] for name, values in payload.items()}
            observer(rows.stop)


def _calibrate(
    made: au.CredibleIndex,
    source: TablePosteriors,
    table: Path,
    columns: TableColumns,
    options: CalibrationOptions,
) -> None:
    """Calibrate the gallery on one random pair of each of some random groups of the held-out table, or of its own."""
    held_out = source
    if options.conformal is not None:
        encoder, work = source.encoder, source.work
        held_out = TablePosteriors(options.conformal, columns, encoder=encoder, work=work)
    groups = au.data.read_groups(
        options.conformal or columns.columns_from or table, options.group_column
    )
    if len(groups) != len(held_out):
        raise InvalidInputError(f"there are {len(held_out)} rows, but {len(groups)} groups.")
    index, rng = au.data.Groups.of(groups), torch.Generator().manual_seed(options.seed)
    chosen = torch.randperm(len(index.sizes), generator=rng)[: options.conformal_pairs]
    left, right = index.pair_of_each(chosen.sort().values, rng).T.numpy()
    kappa_pos, kappa_other = made.origin.kappa_pos, source.typical_kappa()
    assert kappa_pos is not None  # checked before anything was read
    made.conformal = au.ConformalMass.fit(
        held_out[left], held_out[right], kappa_pos, kappa_other=kappa_other
    )


def _sample_ids(opened: au.CredibleIndex) -> list[str]:
    """The rows nearest to a few random directions."""
    rng = torch.Generator().manual_seed(0)
    mu = au.sphere.normalize(torch.randn(RECALL_QUERIES, opened.schema.dim, generator=rng))
    anywhere, options = (
        au.VonMisesFisher(mu, 0.0),
        au.caps.SearchOptions(kind="credible"),
    )
    hits = opened.search(anywhere, 1.0, limit=1, exact=True, options=options)
    assert isinstance(hits, list)
    return sorted({nearest.ids[0] for nearest in hits})


def _head_origin(folder: Path | None) -> au.engines.Origin:
    """The provenance of a gallery whose posteriors come from the head in a folder; unknown without one."""
    from aureole.models._saving import WEIGHTS

    if folder is None:
        return au.engines.Origin()
    head = au.FrozenHead.load(folder)
    return au.engines.Origin(head.kappa_pos_, file_hash(folder / WEIGHTS), head.fingerprint_)


@contextmanager
def _staged(where: str) -> Iterator[str]:
    """A temporary address for a new gallery, renamed to its own when it is complete: an atomic write.

    Databases and object stores are written in place.
    """
    engine_of(where)  # raises for an unknown engine before anything is read
    if not is_local(where):
        yield where
        return
    final = Path(where)
    if final.exists() and not (final.is_dir() and not any(final.iterdir())):
        raise InvalidInputError(
            f"{final} already exists. Choose another --out, append to it with aureole index append, or delete it."
        )
    with atomic_folder(final) as part:
        yield str(part)


def _complete(path: Path, column: str, rows: int, *, numbers: bool = False) -> np.ndarray:
    """A column, which must have a value in every row; ``numbers`` as in ``read_column``."""
    values = au.data.read_column(path, column, numbers=numbers)
    if len(values) != rows:
        raise InvalidInputError(
            f"there are {rows} vectors, but the column {column!r} of {path} has {len(values)} values: the files do "
            "not match row by row."
        )
    missing = next((row for row, value in enumerate(values.tolist()) if value is None), None)
    if missing is not None:
        raise InvalidInputError(
            f"row {missing} (counted from 0) of the column {column!r} of {path} has no value. Fill it in, or drop the "
            "row."
        )
    return values
