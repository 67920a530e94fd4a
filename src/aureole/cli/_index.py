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
from aureole.cli._lazy import np, torch
from aureole.cli._options import (
    IMAGE,
    AsJson,
    Gallery,
    IdColumn,
    InputOptions,
    OptionalHead,
    VectorColumn,
    expanded,
    is_pictures,
    option,
)
from aureole.cli._output import print_json, print_text, rows_bar, training_bar
from aureole.engines._addresses import engine_of, is_local, shown_address
from aureole.errors import DamagedGalleryError, InvalidInputError
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
INFO = """Print facts about a gallery: rows, dimension, typical kappa, engine, columns, approximate index, calibration.

The gallery is only read.

Examples:

    aureole index info gallery.lance
    aureole index info postgresql://me@localhost/shop#gallery --json
"""
CHECK = """Verify everything that a gallery stores, and print one line for each problem.

Checks every row (distinct ids, mu of length 1, kappa of at least 0, payload types), the metric and the size of the
approximate index, and the notes. The gallery is only read. Status 1 if there are problems.

Examples:

    aureole index check gallery.lance
    aureole index check gallery.faiss --json
"""
MAP = """Make the map of a gallery that `aureole serve` shows.

The layout (t-SNE) is fitted on a sample; every other row is placed at its nearest neighbours in the sample. The map is
stored next to the gallery, in NAME.map, or in the user's cache for a database. Run the command again after adding rows.

Examples:

    aureole index map photos.lance
    aureole index map photos.lance --sample 100000
"""
CHUNK = 65_536  # rows per append
_PAIRS = 500  # of rows, that calibrate a gallery
_QUERIES = 20  # rows of the gallery that measure the recall of an approximate index
_GOOD_RECALL = 0.99  # below it the output suggests what to change

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
    vector_column: VectorColumn = None
    id_column: IdColumn = None
    payload_column: list[str] | None = option(
        "Column to store with the rows, for filters and display; repeatable.",
        metavar="COLUMN|NAME=COLUMN",
    )

    def check(self, table: Path, inputs: InputOptions) -> None:
        """Raise for options that contradict each other and columns that do not exist."""
        if inputs.encoder is not None and self.head is None:
            raise typer.BadParameter(
                "--encoder needs --head. For a model that returns posteriors, use aureole embed."
            )
        if inputs.encoder is None and (inputs.text_column or inputs.image_column):
            raise typer.BadParameter("--text-column and --image-column need --encoder.")
        if inputs.encoder is not None:
            inputs.check(table, vector_column=self.vector_column)
        payload = [text.partition("=")[2] or text for text in self.payload_column or []]
        au.data._tables.check_columns(table, self.id_column, *payload)

    def origin(self) -> au.engines.Origin:
        """Return the provenance of a gallery whose posteriors come from the head; unknown without one."""
        from aureole.models._saving import WEIGHTS

        if self.head is None:
            return au.engines.Origin()
        head = au.FrozenHead.load(self.head)
        return au.engines.Origin(head.kappa_pos_, file_hash(self.head / WEIGHTS), head.fingerprint_)

    def ids(self, table: Path, rows: int) -> list[str]:
        """Return the ids of a table: row numbers if it has no column of ids."""
        column = self.id_column or (IMAGE if is_pictures(table) else None)
        if column is None:
            return [str(row) for row in range(rows)]
        from aureole.engines._schema import check_ids

        values = _complete(table, column, rows)
        if values.dtype.kind not in "OUiu":
            raise InvalidInputError(
                f"ids must be strings or integers, but the column {column!r} of {table} has type {values.dtype}."
            )
        return check_ids([str(value) for value in values.tolist()])

    def payload(self, table: Path, rows: int) -> dict[str, list[Any]]:
        """Return the payload columns of a table."""
        payload: dict[str, list[Any]] = {}
        for text in self.payload_column or []:
            name, _, column = text.partition("=")  # NAME=COLUMN stores a column under another name
            if name in payload:
                raise InvalidInputError(f"the payload column {name!r} is given twice.")
            payload[name] = _complete(table, column or name, rows, numbers=True).tolist()
        return payload


@dataclass(frozen=True)
class CalibrationOptions:
    """The conformal calibration that `search --guarantee conformal` uses."""

    group_column: str | None = option(
        "Calibrate search --guarantee conformal on pairs of rows of one group, held out from the head."
    )
    conformal: Path | None = option(
        "Table with these held-out groups (default: the gallery's own table)."
    )
    kappa_pos: float | None = option(
        "Concentration of positives around a latent (default: the head's).", min=0
    )


class TablePosteriors:
    """The posteriors of a table: a head's predictions for its vectors, or its own columns of mu and kappa.

    ``source[rows]`` returns some rows; memory does not grow with the table.
    """

    def __init__(
        self, path: Path, columns: TableColumns, inputs: InputOptions, **settings: Any
    ) -> None:
        self._head = None if columns.head is None else au.FrozenHead.load(columns.head)
        name = "mu" if self._head is None else columns.vector_column
        self._vectors = inputs.vectors(path, vector_column=name, **settings)
        self.kappa = np.zeros(0, np.float32)
        if self._head is None:
            values = _complete(path, "kappa", len(self._vectors), numbers=True)
            if values.dtype.kind not in "fiu":
                raise InvalidInputError(
                    f"kappa must be a column of numbers, but that of {path} has type {values.dtype}."
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
        """Return the median kappa of all rows."""
        from aureole.training._assessment import kappas

        if self._head is not None and not len(self.kappa):
            self.kappa = kappas(self._head, self._vectors, observer=observer)
        return float(np.median(self.kappa))


@index.command("build", help=BUILD)
@expanded
def build(
    table: Table,
    out: Annotated[
        str,
        Option(
            help="Path that ends in .lance or .faiss, or postgresql://user@host/db#table.",
            metavar="ADDRESS",
        ),
    ],
    columns: TableColumns,
    inputs: InputOptions,
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
    columns.check(table, inputs)
    origin = columns.origin()
    if calibrate.kappa_pos is not None:
        origin = replace(origin, kappa_pos=calibrate.kappa_pos)
    if calibrate.group_column is not None and origin.kappa_pos is None:
        raise typer.BadParameter("a calibration needs --kappa-pos, or --head, which has one.")
    shown = not as_json
    encoder = inputs.load(columns.head)
    if encoder is not None:
        origin = replace(origin, encoder=encoder.fingerprint)
    with _staged(out) as place:
        work = Path(out).parent if is_local(out) else None

        def read(path: Path) -> TablePosteriors:
            return TablePosteriors(path, columns, inputs, encoder=encoder, work=work, shown=shown)

        source = read(table)
        ids, payload = columns.ids(table, len(source)), columns.payload(table, len(source))
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
                held_out = source if calibrate.conformal is None else read(calibrate.conformal)
                groups = au.data.read_groups(calibrate.conformal or table, calibrate.group_column)
                _calibrate(made, held_out, groups, typical)
            result = _gallery_facts(made, out)
    _show_facts(result | {"seconds": time.monotonic() - started}, as_json=as_json)


@index.command("append", help=APPEND)
@expanded
def append(
    table: Table,
    gallery: Annotated[str, Option("--to", help="Address of the gallery.", metavar="ADDRESS")],
    columns: TableColumns,
    inputs: InputOptions,
    replace: Annotated[
        bool, Option("--replace", help="Replace rows whose id exists already.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Append to a gallery; ``APPEND`` is the text users see."""
    started, shown = time.monotonic(), not as_json
    columns.check(table, inputs)
    with au.CredibleIndex.open(gallery) as opened:
        encoder = inputs.load(columns.head)
        if columns.head is not None:
            own = columns.origin()
            fingerprint = own.encoder if encoder is None else encoder.fingerprint
            who = f"the head in {columns.head}"
            opened.origin.check_same(own.weights or "", who, encoder=fingerprint)
        work = Path(gallery).parent if is_local(gallery) else None
        source = TablePosteriors(table, columns, inputs, encoder=encoder, work=work, shown=shown)
        ids, payload = columns.ids(table, len(source)), columns.payload(table, len(source))
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
        result = _gallery_facts(opened, gallery)
    result |= {"appended": len(source) - replaced, "replaced": replaced}
    _show_facts(result | {"seconds": time.monotonic() - started}, as_json=as_json)


@index.command("approximate", help=APPROXIMATE)
def approximate(
    gallery: Gallery,
    kind: Annotated[Literal["ivf", "hnsw"], Option(help="Inverted lists, or a graph.")] = "ivf",
    probes: Annotated[
        int | None, Option(min=1, help="IVF lists that a search visits (default: 1/16 of them).")
    ] = None,
    width: Annotated[int | None, Option(min=1, help="HNSW search width (default: 128).")] = None,
    as_json: AsJson = False,
) -> None:
    """Build an approximate index; ``APPROXIMATE`` is the text users see."""
    started = time.monotonic()
    sizes = {k: v for k, v in (("probes", probes), ("width", width)) if v is not None}
    if sizes.keys() - {"probes" if kind == "ivf" else "width"}:
        raise typer.BadParameter("--probes needs --kind ivf, and --width needs --kind hnsw.")
    with au.CredibleIndex.open(gallery) as opened:
        if not opened.count():
            raise InvalidInputError(f"{shown_address(gallery)} has no rows to index.")
        opened.build(kind, **sizes)
        seconds = time.monotonic() - started
        posteriors, _ = opened.fetch(_sample_ids(opened))
        recall = opened.check_recall(posteriors, least=0.0)
        result = _gallery_facts(opened, gallery) | {"recall": recall.share, "seconds": seconds}
    _show_facts(result, as_json=as_json)


@index.command("info", help=INFO)
def info(gallery: Gallery, as_json: AsJson = False) -> None:
    """Print facts about a gallery; ``INFO`` is the text users see."""
    with au.CredibleIndex.open(gallery) as opened:
        _show_facts(_gallery_facts(opened, gallery), as_json=as_json)


@index.command("check", help=CHECK)
def check(gallery: Gallery, as_json: AsJson = False) -> None:
    """Check a gallery; ``CHECK`` is the text users see."""
    started = time.monotonic()
    facts: dict[str, Any] = {"gallery": shown_address(gallery), "engine": None, "rows": None}
    try:
        with au.CredibleIndex.open(gallery) as opened:
            facts |= {"engine": opened.engine, "rows": opened.count()}
            shown = not as_json
            with rows_bar("checking", opened.count(), shown=shown) as observer:
                problems = opened.check(observer=observer)
    except DamagedGalleryError as error:  # so damaged that it does not open
        problems = [str(error)]
    if as_json:
        print_json(facts | {"problems": problems, "seconds": time.monotonic() - started})
    elif problems:
        print_text(*problems)
    else:
        print_text(f"{facts['rows']:,} rows in {facts['gallery']} ({facts['engine']}): no problems")
    if problems:
        raise typer.Exit(1)


@index.command("map", help=MAP)
def map_(
    gallery: Gallery,
    sample: Annotated[
        int, Option(min=100, help="Rows that the layout is fitted on, at most.")
    ] = 50_000,
    as_json: AsJson = False,
) -> None:
    """Make a map; ``MAP`` is the text users see."""
    from aureole.explorer import write_map
    from aureole.explorer._gallery_map import map_path

    started = time.monotonic()
    with (
        au.CredibleIndex.open(gallery) as opened,
        training_bar("mapping", shown=not as_json) as bar,
    ):
        made = write_map(opened, sample=sample, observer=bar.part)
        path = str(map_path(opened.where))
    note = made.note
    if as_json:
        facts = {name: getattr(note, name) for name in ("method", "rows", "fitted")}
        print_json({"map": path, **facts, "seconds": time.monotonic() - started})
        return
    print_text(path, f"{note.rows:,} rows by {note.method}, fitted on {note.fitted:,}.")


def _parts(
    engine: str, count: int, payload: dict[str, list[Any]], *, shown: bool
) -> Iterator[tuple[slice, dict[str, list[Any]]]]:
    """Yield the rows of each chunk and their payload; one chunk for FAISS, which rewrites all rows."""
    size = count if engine == "FAISS" else CHUNK
    with rows_bar("storing", count, shown=shown) as observer:
        for first in range(0, count, size):
            rows = slice(first, min(first + size, count))
            yield rows, {name: values[rows] for name, values in payload.items()}
            observer(rows.stop)


def _calibrate(
    made: au.CredibleIndex, held_out: TablePosteriors, groups: np.ndarray, kappa_other: float
) -> None:
    """Calibrate the gallery on one random pair of each of some random groups."""
    if len(groups) != len(held_out):
        raise InvalidInputError(f"there are {len(held_out)} rows, but {len(groups)} groups.")
    every, rng = au.data._pairs.Groups.of(groups), torch.Generator().manual_seed(0)
    chosen = torch.randperm(len(every.sizes), generator=rng)[:_PAIRS]
    left, right = every.pair_of_each(chosen.sort().values, rng).T.numpy()
    kappa_pos = made.origin.kappa_pos
    assert kappa_pos is not None  # checked before anything was read
    made.conformal = au.ConformalMass.fit(
        held_out[left], held_out[right], kappa_pos, kappa_other=kappa_other
    )


def _sample_ids(opened: au.CredibleIndex) -> list[str]:
    """Return the rows nearest to a few random directions."""
    rng = torch.Generator().manual_seed(0)
    mu = au.sphere.normalize(torch.randn(_QUERIES, opened.schema.dim, generator=rng))
    options = au.caps.SearchOptions(kind="credible")
    hits = opened.search(au.VonMisesFisher(mu, 0.0), 1.0, limit=1, exact=True, options=options)
    assert isinstance(hits, list)
    return sorted({nearest.ids[0] for nearest in hits})


@contextmanager
def _staged(where: str) -> Iterator[str]:
    """Yield a temporary address for a new gallery, renamed to its own when it is complete: an atomic write.

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
    """Return a column, which must have a value in every row; ``numbers`` as in ``read_column``."""
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


def _gallery_facts(index: au.CredibleIndex, where: str) -> dict[str, Any]:
    """Return facts about an index to print; the address has no password."""
    schema, held, origin = index.schema, index.conformal, index.origin
    calibrated = None
    if held is not None:
        pairs = len(held.scores)
        calibrated = {"pairs": pairs, "largest_mass": pairs / (pairs + 1)}
        calibrated |= {"kappa_pos": held.kappa_pos, "kappa_other": held.kappa_other}
    return {
        "gallery": shown_address(where),
        "engine": index.engine,
        "rows": index.count(),
        "dim": schema.dim,
        "typical_kappa": schema.typical_kappa,
        "columns": dict(schema.columns),
        "approximate": index.approximate,
        "conformal": calibrated,
        "kappa_pos": origin.kappa_pos,
        "head": origin.weights,
        "encoder": origin.encoder,
    }


def _show_facts(facts: dict[str, Any], *, as_json: bool) -> None:
    """Print facts about a gallery, as text or as JSON."""
    if as_json:
        print_json(facts)
        return
    added = "".join(f"{facts[k]:,} rows {k}; " for k in ("appended", "replaced") if facts.get(k))
    kappa_pos = "" if facts["kappa_pos"] is None else f"; κ_pos {facts['kappa_pos']:.4g}"
    columns = ", ".join(f"{name} ({kind})" for name, kind in facts["columns"].items())
    print_text(
        f"{added}{facts['rows']:,} rows in R^{facts['dim']} in {facts['gallery']} ({facts['engine']})",
        f"typical κ {facts['typical_kappa']:.4g}{kappa_pos}",
        f"payload: {columns or 'none'}",
    )
    approximate, recall = facts["approximate"], facts.get("recall")
    if approximate is None:
        print_text("every search is exact")
    else:
        sizes = ", ".join(
            f"{name} {value}" for name, value in approximate.items() if name != "kind"
        )
        print_text(f"approximate index {approximate['kind']}{f' ({sizes})' if sizes else ''}")
    if recall is not None:
        print_text(f"recall {100 * recall:.2f} % of the members of the caps of {_QUERIES} rows")
        if recall < _GOOD_RECALL:
            print_text("It is low: rebuild with more --probes or --width, or search with --exact.")
    held = facts["conformal"]
    text = "no conformal calibration"
    if held is not None:
        text = f"conformal calibration on {held['pairs']:,} pairs: guarantees up to mass {held['largest_mass']:.4g}"
    print_text(text)
