"""Options that several verbs share."""

from pathlib import Path
from typing import Annotated, Any

import typer

from aureole.heads import find_model

__all__ = ["Head", "Normalized", "OptionalHead", "model_option"]


def model_option(help: str) -> Any:
    """An option that names a model: its folder, or a head that comes with the package."""
    return typer.Option(help=help, metavar="DIR|NAME", parser=find_model)


_HEAD = model_option("The folder of a head, as fit-head saves it, or minilm-captions.")
Head = Annotated[Path, _HEAD]
OptionalHead = Annotated[Path | None, _HEAD]
Normalized = Annotated[
    bool | None,
    typer.Option(
        "--normalized/--not-normalized",
        help="Whether the head takes MiniLM vectors of norm 1; default: as it was fitted.",
    ),
]
