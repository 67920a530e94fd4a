"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from aureole.errors import InvalidInputError
from aureole.models import find_model

KEY = "AUREOLE_API_KEY"  # of the environment: the key of a service, for who runs it and for who asks it


def model_option(help: str) -> Any:
    """An option that names a model: its folder, or a head that comes with the package."""
    return typer.Option(help=help, metavar="DIR|NAME", parser=find_model)


_HEAD = model_option("The folder of a head, as fit-head saves it, or minilm-captions.")
Head = Annotated[Path, _HEAD]
OptionalHead = Annotated[Path | None, _HEAD]
Vectors = Annotated[Path, typer.Argument(help="A table of vectors: a file, or a folder of files.")]
VectorColumn = Annotated[
    str | None, typer.Option(help="The column of vectors; default: the only one of lists.")
]
IdColumn = Annotated[
    str | None, typer.Option(help="The column of ids; default: rows are numbered from 0 on.")
]
GroupColumn = Annotated[
    str | None, typer.Option(help="The column of groups: rows with the same value are partners.")
]
ColumnsFrom = Annotated[
    Path | None,
    typer.Option(help="The file with the other columns, row by row; default: the table."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the results as one JSON object.")]
RayAddress = Annotated[
    str | None, typer.Option(help="A running Ray cluster; default: this machine.")
]
# of an approximate index
Lists = Annotated[int | None, typer.Option(min=1, help="Of ivf; default: 4 √rows.")]
Probes = Annotated[
    int | None, typer.Option(min=1, help="Lists that a search looks at; default: lists / 16.")
]
Links = Annotated[int | None, typer.Option(min=1, help="Of hnsw, for each row.")]
Width = Annotated[int | None, typer.Option(min=1, help="Of the search in hnsw; default: 128.")]
Normalized = Annotated[
    bool | None,
    typer.Option(
        "--normalized/--not-normalized",
        help="Whether the head takes MiniLM vectors of norm 1; default: as it was fitted.",
    ),
]


def check_out(out: Path, what: str, *, overwrite: bool) -> None:
    """Refuse to replace a model unless asked to, and to write into a folder of other things at all."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / "config.json").is_file():
        raise InvalidInputError(
            f"{out} is there and is no {what}. Choose another folder for --out."
        )
    if not overwrite:
        article = "an" if what[0] in "aeiou" else "a"
        raise InvalidInputError(
            f"{out} holds {article} {what} already. Give --overwrite to replace it, or choose another folder for --out."
        )
