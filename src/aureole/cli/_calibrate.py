"""``aureole calibrate``: from queries with known matches to a match calibrator and a page, in one command."""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import aureole as au
from aureole.cli._labelled_queries import GalleryOptions, Items, Labels, QueryOptions, Sources
from aureole.cli._lazy import match_report, np, pages
from aureole.cli._options import (
    AsJson,
    EncoderSpec,
    InputOptions,
    check_out,
    expanded,
    option,
    resumable,
    run_digest,
)
from aureole.cli._output import (
    print_json,
    print_table,
    print_text,
    rows_bar,
    table as text_table,
    training_bar,
)
from aureole.errors import EncoderError

HELP = r"""Learn which search results are good enough, from queries with known matches.

Writes a folder with a MatchCalibrator, which turns the cosines of your database into match probabilities, and a page
with thresholds and what they give. Your vectors stay as they are. If the command is interrupted, run it again to
resume.

The table has one query per row, or one query and one match per row. Matches are ids of the --gallery, or texts;
without --gallery, the distinct matching texts are the gallery. Without labels, --made makes queries from the texts.

Examples:

    aureole calibrate pairs.csv --text-column question \
      --match-text-column answer --out calibrator \
      --encoder sentence-transformers:all-MiniLM-L6-v2
    aureole calibrate questions.csv --text-column question \
      --match-column answers --gallery answers.csv --gallery-column text \
      --id-column id --encoder sentence-transformers:all-MiniLM-L6-v2 \
      --precision 0.8 --out calibrator
    aureole calibrate queries.parquet --vector-column v \
      --match-column items --gallery items.npy --out calibrator
    aureole calibrate answers.csv --made --text-column text --id-column id \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --out calibrator
"""

PAGE = "report.html"


@dataclass(frozen=True)
class AimOptions:
    """What to ask for."""

    precision: list[float] | None = option(
        "Share of results that should match; repeatable (default: several)."
    )
    recall: list[float] | None = option(
        "Share of matches that should be returned; repeatable (default: several)."
    )
    query_map: bool = option(
        "Also learn a linear map of the queries, to search with.", False, "--query-map"
    )
    overwrite: bool = option("Replace an existing calibrator.", False, "--overwrite")

    def check(self) -> None:
        """Raise for shares that are not between 0 and 1."""
        for name, shares in (("precision", self.precision), ("recall", self.recall)):
            for share in shares or ():
                if not 0 < share < 1:
                    raise typer.BadParameter(f"--{name} must be between 0 and 1, not {share}.")

    def aims(self, calibrator: au.MatchCalibrator) -> list[match_report.Aim]:
        """The thresholds that were asked for, or several."""
        if not self.precision and not self.recall:
            return match_report.threshold_aims(calibrator)
        return match_report.threshold_aims(calibrator, self.precision or (), self.recall or ())


@expanded
def calibrate(
    table: Annotated[
        Path,
        Argument(
            help="Table of queries with their matches; with --made, of texts.", metavar="TABLE"
        ),
    ],
    out: Annotated[Path, Option(help="Folder to save the calibrator and its page in.")],
    queries: QueryOptions,
    gallery: GalleryOptions,
    aims: AimOptions,
    encoder: EncoderSpec = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate and save; ``HELP`` is the text users see."""
    started = time.monotonic()
    check_out(out, "calibrator", overwrite=aims.overwrite, file="match.json")
    pages.check_page()
    aims.check()
    queries.check(encoder, gallery.gallery)
    inputs = InputOptions(encoder, queries.text_column, queries.image_column)
    sources = Sources(table, queries, gallery, inputs)
    sources.check()
    items, labels = sources.read()
    model = inputs.load()
    settings = [vars(queries), vars(gallery), model and model.fingerprint]
    partial = out.with_name(f"{out.name}.partial-{run_digest(settings, sources.files())}")
    with resumable(partial):
        vectors = _Vectors(sources, model, partial, shown=not as_json)
        item_vectors = vectors.of_items(items)
        query_vectors, others = vectors.of_queries(labels, item_vectors.shape[1])
        with training_bar("calibrating", shown=vectors.shown) as bar:
            bar.part("fitting", 0, 2)
            calibrator = au.MatchCalibrator(query_map=aims.query_map)
            calibrator.fit(
                query_vectors,
                item_vectors,
                [items.named(group) for group in labels.matches],
                ids=items.ids,
                other_queries=others if len(others) else None,
                encoder=None if model is None else model.fingerprint,
            )
            bar.part("measuring", 1, 2)
            shown = aims.aims(calibrator)
            note = match_report.MADE if queries.made else ""
            page = {"source": table.name, "note": note, "aims": shown}
            _save(calibrator, partial / "calibrator", out, **page)
    shutil.rmtree(partial, ignore_errors=True)
    facts = _facts(calibrator, out, items, labels)
    if as_json:
        facts["thresholds"] = [_aim_facts(aim) for aim in shown]
        print_json(facts | {"made": queries.made, "seconds": time.monotonic() - started})
        return
    _show(facts, sum(map(len, labels.matches)), shown)
    if note:
        print_text("", note)
    _show_usage(calibrator, out, shown)


@dataclass(frozen=True)
class _Vectors:
    """Reads and encodes: vectors that were encoded before an interruption are used again."""

    sources: Sources
    encoder: au.encoders.Encoder | None
    partial: Path
    shown: bool

    def of_items(self, items: Items) -> np.ndarray:
        """The vectors of the gallery."""
        path = self.sources.gallery.gallery
        column, kind = self.sources.item_column, self.sources.inputs.kind
        if path is None:
            assert items.texts is not None
            texts = ((f"item {i}", text) for i, text in enumerate(items.texts))
            return self._encoded(texts, "gallery")
        if not self.sources.has_vectors(path):
            assert column is not None
            return self._encoded(au.data._tables.scan_inputs(path, column, kind), "gallery")
        with rows_bar("reading gallery", shown=self.shown) as observer:
            vectors = au.data.read_vectors(path, column, work=self.partial, observer=observer)
        if self.encoder is not None:
            self._check_dim(self.encoder.dim, vectors.shape[1], f"{self.encoder} gives")
        return vectors

    def of_queries(self, labels: Labels, dim: int) -> tuple[np.ndarray, np.ndarray]:
        """The vectors of the labelled and of the other queries."""
        rows = [*labels.rows, *labels.unlabelled]
        table, inputs = self.sources.table, self.sources.inputs
        if labels.texts is not None:
            texts = labels.texts
            stream = ((f"row {row} of {table} (counted from 0)", texts[row]) for row in rows)
            vectors = self._encoded(stream, "queries")
        elif self.encoder is not None:
            column = inputs.column(table)
            assert column is not None
            pictures = au.data._tables.scan_inputs(table, column, inputs.kind)
            vectors = self._encoded(pictures, "queries")[rows]
        else:
            column = self.sources.queries.vector_column
            vectors = au.data.read_vectors(table, column, work=self.partial)
            self._check_dim(vectors.shape[1], dim, f"{table} has")
            vectors = vectors[rows]
        return vectors[: len(labels.rows)], vectors[len(labels.rows) :]

    def _encoded(self, stream: Any, name: str) -> np.ndarray:
        from aureole.encoders._bulk import encode_all

        assert self.encoder is not None
        places: dict[str, Any] = {"work": self.partial, "resume": self.partial / name}
        with rows_bar(f"encoding {name}", shown=self.shown) as observer:
            return encode_all(self.encoder, stream, observer=observer, **places)

    def _check_dim(self, given: int, needed: int, what: str) -> None:
        if given != needed:
            raise EncoderError(
                f"{what} vectors of {given} dimensions, but the gallery {self.sources.gallery.gallery} has {needed}. "
                "Use the encoder that made the gallery."
            )


def _save(calibrator: au.MatchCalibrator, staging: Path, out: Path, **page: Any) -> None:
    """Write the calibrator and its page to a folder next to ``out``, then move the files."""
    calibrator.save(staging)
    match_report.write_match_report(calibrator, staging / PAGE, folder=str(out), **page)
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(staging.iterdir(), key=lambda file: file.name == "match.json"):
        file.replace(out / file.name)  # match.json, by which a calibrator is recognised, comes last


def _facts(
    calibrator: au.MatchCalibrator, out: Path, items: Items, labels: Labels
) -> dict[str, Any]:
    """Return the sizes as JSON values."""
    return {
        "calibrator": str(out),
        "report": str(out / PAGE),
        "queries": len(labels.rows),
        "queries_without_matches": len(labels.unlabelled),
        "held_out": len(calibrator.held_out_rows_),
        "items": items.count,
    }


def _aim_facts(aim: match_report.Aim) -> dict[str, Any]:
    """Return a threshold as JSON values."""
    facts = {"kind": aim.kind, "share": aim.share, "threshold": aim.threshold}
    return facts if aim.quality is None else facts | {"held_out": asdict(aim.quality)}


def _show(facts: dict[str, Any], matches: int, aims: list[match_report.Aim]) -> None:
    """Print the sizes and the table of thresholds."""
    held = facts["held_out"]
    count = f"{facts['queries']:,} queries with {matches:,} matches among {facts['items']:,} items"
    print_text(f"{count}; {held:,} queries held out")
    if facts["queries_without_matches"]:
        count = f"{facts['queries_without_matches']:,} queries without matches"
        print_text(f"{count} are used for the statistics of items only")
    rows = text_table(
        "thresholds, measured on the held-out queries",
        *("asked for", "threshold", "precision, %", "recall, %", "results per query"),
    )
    for aim in aims:
        if aim.quality is None:
            rows.add_row(aim.label, "none", "", "", "")
            continue
        quality = aim.quality
        rows.add_row(
            aim.label,
            match_report.format_threshold(quality.threshold),
            match_report.percent_range(quality.precision, quality.precision_interval),
            match_report.percent_range(quality.recall, quality.recall_interval),
            f"{quality.results:,.1f}",
        )
    print_table(rows)
    if any(aim.threshold is None for aim in aims):
        print_text(
            f"none: {held:,} held-out queries do not show it at any threshold. Label more, or ask for less."
        )


def _show_usage(calibrator: au.MatchCalibrator, out: Path, aims: list[match_report.Aim]) -> None:
    """Print what to do next."""
    print_text(
        "",
        f"saved in {out}; open {out / PAGE}",
        "In Python, where search(vector, k) of your database returns cosines and ids:",
        "",
    )
    code = match_report.usage_code(calibrator, str(out), aims)
    imports = "from aureole.match import MatchCalibrator, MatchFilter"
    print_text(*(f"  {line}" for line in (imports, *code)), wrap=False)
