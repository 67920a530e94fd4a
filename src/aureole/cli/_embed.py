"""``aureole embed``: all of a folder, table or dataset as posteriors in a Lance table that can be searched."""

import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from aureole.cli._options import AsJson, IdColumn, Normalized, RayAddress, model_option
from aureole.cli._progress import embed_bar
from aureole.cli._results import print_json
from aureole.errors import AureoleError
from aureole.scale import EmbedOptions, EmbedReport, SourceSpec, embed as embed_source

HELP = r"""Embed a folder of pictures, a table, a WebDataset or a saved Hugging Face dataset with a saved model.

One row for each input: id, mu, kappa, a hash of the input and of the model, in a table that `aureole search` searches.
Started again, the same command makes only what is missing; with another model its rows go to a table beside. Inputs
that cannot be read are in the table `….errors.lance` with the reason. With more than one worker, or at an address, Ray
does the work; with one it is not needed.

Examples:

    aureole embed photos/ --encoder encoder --out photos.lance
    aureole embed captions.parquet --column caption --id-column id \
      --encoder head --out captions.lance --workers 4
    aureole embed mounted/shards/ --encoder encoder --out photos.lance \
      --workers 64 --ray-address 10.0.0.1:6379
"""


def embed(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of pictures, .parquet, .arrow, .lance or .tar, or a folder of such files."
        ),
    ],
    encoder: Annotated[
        Path,
        model_option("The folder of a saved encoder, pipeline or head, or minilm-captions."),
    ],
    out: Annotated[
        str, typer.Option(help="The table; its name ends in .lance.", metavar="ADDRESS")
    ],
    modality: Annotated[
        Literal["image", "text", "vector"] | None,
        typer.Option(help="What the inputs are; default: what the model takes."),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(help="The column of inputs, or ending in .tar files; default: the only one."),
    ] = None,
    id_column: IdColumn = None,
    normalized: Normalized = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes; if several, of one thread each.")
    ] = 1,
    ray_address: RayAddress = None,
    batch: Annotated[int, typer.Option(min=1, help="Inputs through the model at once.")] = 128,
    decoders: Annotated[
        int, typer.Option(min=1, help="Threads that decode beside the model, in each worker.")
    ] = 1,
    chunk_rows: Annotated[
        int | None,
        typer.Option(min=1, help="Inputs that are done, or lost, as one; default: by the source."),
    ] = None,
    commit_seconds: Annotated[
        float, typer.Option(min=0, help="How often rows become part of the table.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Embed and print; ``HELP`` is what users read."""
    quiet = as_json or not sys.stderr.isatty()
    # Ray tells of workers that died on standard output, which is for the result alone
    with redirect_stdout(sys.stderr), embed_bar("embedding", shown=not quiet) as observer:
        report = embed_source(
            SourceSpec(source, modality, column, id_column, chunk_rows),
            encoder,
            out,
            normalized=normalized,
            workers=workers,
            address=ray_address,
            options=EmbedOptions(batch, decoders, commit_seconds),
            observer=observer,
        )
    if as_json:
        print_json(asdict(report))
    else:
        _show(report, out)
    if report.errors and not report.rows:
        raise AureoleError(
            f"none of the {report.errors:,} inputs could be read; {report.errors_table} says why."
        )


def _show(report: EmbedReport, out: str) -> None:
    console = Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(text, markup=False)

    say(
        f"{report.new_rows:,} rows made in {report.seconds:.1f} s ({report.rows_per_second:,.0f} a second); "
        f"{report.rows:,} rows in R^{report.dim} in {report.table}"
    )
    if report.table != out:
        say(f"beside {out}, which has the rows of another model")
    if report.repeated:
        say(
            f"{report.repeated:,} rows have an id that another row has: is the column of ids the right one?"
        )
    if report.errors:
        say(f"{report.errors:,} inputs could not be read: {report.errors_table} says why")
