"""``aureole embed``: the posteriors of a folder, table or dataset in a Lance table that can be searched."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

import aureole as au
from aureole.cli._inputs import EncoderSpec
from aureole.cli._options import (
    AsJson,
    IdColumn,
    Normalized,
    OptionalHead,
    RayAddress,
    expanded,
    option,
)
from aureole.cli._output import embed_bar, is_quiet, print_json, print_text
from aureole.errors import AureoleError

HELP = r"""Embed a folder of pictures, a table, a WebDataset or a saved Hugging Face dataset.

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
    aureole embed mounted/shards/ --encoder timm:resnet50 --head head \
      --out photos.lance --workers 64 --ray-address 10.0.0.1:6379
"""


@dataclass(frozen=True)
class InputOptions:
    """How to read the source."""

    modality: Literal["image", "text", "vector"] | None = option(
        "Kind of input (default: what the model takes)."
    )
    column: str | None = option(
        "Column of inputs, or file ending in .tar files (default: the only one that fits)."
    )
    text_column: str | None = option("Column of texts; short for --column and --modality text.")
    image_column: str | None = option(
        "Column of pictures, bytes or paths; short for --column and --modality image."
    )
    id_column: IdColumn = None
    normalized: Normalized = None
    chunk_rows: int | None = option(
        "Rows per chunk, the unit of retry (default: depends on the source).", min=1
    )

    def source(self, path: str) -> au.scale.SourceSpec:
        """The source; raises if several options name its column."""
        given = {"text": self.text_column, "image": self.image_column}
        named = {kind: name for kind, name in given.items() if name is not None}
        if len(named) + (self.column is not None) > 1 or (named and self.modality is not None):
            raise typer.BadParameter(
                "use one of --text-column, --image-column, and --column with --modality."
            )
        kind: Any = next(iter(named), self.modality)
        column = next(iter(named.values()), self.column)
        return au.scale.SourceSpec(path, kind, column, self.id_column, self.chunk_rows)


@dataclass(frozen=True)
class WorkOptions:
    """How to run."""

    workers: int = option("Number of processes; several have one thread each.", 1, min=1)
    ray_address: RayAddress = None
    batch: int = option("Inputs per call of the model; try more on a GPU.", 64, min=1)
    decoders: int = option("Decoding threads per worker, in parallel with the model.", 1, min=1)
    commit_seconds: float = option("Seconds between commits to the table.", 2.0, min=0)


@expanded
def embed(
    source: Annotated[
        str,
        Argument(
            help="Folder of pictures, table (.csv, .jsonl, .parquet, .lance, ...), .tar file, or a folder of these."
        ),
    ],
    out: Annotated[str, Option(help="Table to write, NAME.lance.", metavar="ADDRESS")],
    inputs: InputOptions,
    work: WorkOptions,
    encoder: EncoderSpec = None,
    head: OptionalHead = None,
    as_json: AsJson = False,
) -> None:
    """Embed and print; ``HELP`` is the text users see."""
    if encoder is None and head is None:
        raise typer.BadParameter("name an --encoder, a --head, or both.")
    spec, model = inputs.source(source), au.scale.ModelSpec(encoder, head, inputs.normalized)
    _embed(spec, model, out, work, as_json=as_json)


def _embed(
    spec: au.scale.SourceSpec,
    model: au.scale.ModelSpec,
    out: str,
    work: WorkOptions,
    *,
    as_json: bool,
) -> None:
    """Embed all inputs and print the report."""
    shown = not is_quiet(as_json=as_json)
    # Ray reports dead workers on standard output, which is for the result alone
    with redirect_stdout(sys.stderr), embed_bar("embedding", shown=shown) as observer:
        report = au.scale.embed(
            spec,
            model,
            out,
            workers=work.workers,
            address=work.ray_address,
            options=au.scale.EmbedOptions(work.batch, work.decoders, work.commit_seconds),
            observer=observer,
        )
    if as_json:
        print_json(asdict(report))
    else:
        rows, errors, reasons = report.rows, report.errors, report.errors_table
        print_text(
            f"{report.new_rows:,} rows added in {report.seconds:.1f} s ({report.rows_per_second:,.0f} per second); "
            f"{rows:,} rows in R^{report.dim} in {report.table}"
        )
        if report.table != out:
            print_text(f"{out} has the rows of another model, so these are in a separate table")
        if report.repeated:
            print_text(f"{report.repeated:,} rows share their id with another: check the id column")
        if errors:
            print_text(f"{errors:,} inputs could not be read; {reasons} lists the reasons")
    if report.errors and not report.rows:
        raise AureoleError(
            f"none of the {report.errors:,} inputs could be read; see the reasons in {report.errors_table}."
        )
