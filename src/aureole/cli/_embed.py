"""``aureole embed``: the posteriors of a folder, table or dataset in a Lance table that can be searched."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import aureole as au
from aureole.cli._options import AsJson, EncoderSpec, IdColumn, OptionalHead, expanded, option
from aureole.cli._output import print_json, print_text, progress
from aureole.errors import AureoleError

if TYPE_CHECKING:
    from aureole.embed._embed import Progress

HELP = r"""Embed a folder of pictures, a table or a saved Hugging Face dataset.

The model is an encoder with a head on its vectors, a head alone for vectors, or a saved model that returns posteriors.

Writes one row per input (id, mu, kappa, hashes of the input and of the model) to a table that `aureole search` reads.
Run the same command again to resume: only missing rows are computed. The rows of another model go to a separate table.
Inputs that cannot be read are listed with the reason in `….errors.lance`. Several workers, or a cluster, need Ray.

Examples:

    aureole embed photos/ --encoder encoder --out photos.lance
    aureole embed captions.csv --text-column caption --id-column id \
      --encoder sentence-transformers:all-MiniLM-L6-v2 --head head \
      --out captions.lance
    aureole embed vectors.parquet --head head --out vectors.lance --workers 4
    aureole embed mounted/photos/ --encoder timm:resnet50 --head head \
      --out photos.lance --workers 64 --ray-address 10.0.0.1:6379
"""


@dataclass(frozen=True)
class ColumnOptions:
    """The column of inputs; by default the only one that fits what the model takes."""

    text_column: str | None = option("Column of texts.")
    image_column: str | None = option("Column of pictures, bytes or paths.")
    vector_column: str | None = option("Column of vectors.")
    id_column: IdColumn = None

    def source(self, path: str) -> au.embed.SourceSpec:
        """Return the source; raises if several options name its column."""
        given = {"text": self.text_column, "image": self.image_column, "vector": self.vector_column}
        named: list[Any] = [pair for pair in given.items() if pair[1] is not None]
        if len(named) > 1:
            raise typer.BadParameter("use one of --text-column, --image-column, --vector-column.")
        kind, column = named[0] if named else (None, None)
        return au.embed.SourceSpec(path, kind, column, self.id_column)


@dataclass(frozen=True)
class ModelOptions:
    """The model: an encoder, a head, or both."""

    encoder: EncoderSpec = None
    head: OptionalHead = None


@dataclass(frozen=True)
class WorkOptions:
    """Where to compute."""

    workers: int = option("Number of processes; several have one thread each.", 1, min=1)
    ray_address: str | None = option("Address of a Ray cluster (default: this machine).")


@expanded
def embed(
    source: Annotated[
        str,
        Argument(
            help="Folder of pictures, table (.csv, .jsonl, .parquet, .lance, ...), or a folder of tables."
        ),
    ],
    out: Annotated[str, Option(help="Table to write, NAME.lance.", metavar="ADDRESS")],
    model: ModelOptions,
    columns: ColumnOptions,
    work: WorkOptions,
    as_json: AsJson = False,
) -> None:
    """Embed and print; ``HELP`` is the text users see."""
    if model.encoder is None and model.head is None:
        raise typer.BadParameter("name an --encoder, a --head, or both.")
    spec, embedder = columns.source(source), au.embed.ModelSpec(model.encoder, model.head)
    # Ray reports dead workers on standard output, which is for the result alone
    with redirect_stdout(sys.stderr), progress("embedding", shown=not as_json) as show:

        def observe(now: Progress) -> None:
            done = now.before + now.done
            show(done, now.total, f"{done:,} rows, {now.rate:,.0f}/s, {now.faults:,} errors")

        report = au.embed.embed(
            spec, embedder, out,
            workers=work.workers, address=work.ray_address, observer=observe,
        )  # fmt: skip
    if as_json:
        print_json(asdict(report))
    else:
        _show(report, out)
    if report.errors and not report.rows:
        raise AureoleError(
            f"none of the {report.errors:,} inputs could be read; see the reasons in {report.errors_table}."
        )


def _show(report: au.embed.EmbedReport, out: str) -> None:
    print_text(
        f"{report.new_rows:,} rows added in {report.seconds:.1f} s ({report.rows_per_second:,.0f} per second); "
        f"{report.rows:,} rows in R^{report.dim} in {report.table}"
    )
    if report.table != out:
        print_text(f"{out} has the rows of another model, so these are in a separate table")
    if report.errors:
        print_text(
            f"{report.errors:,} inputs could not be read; {report.errors_table} lists the reasons"
        )
