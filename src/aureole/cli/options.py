"""Options that several verbs share."""

from typing import Annotated

import typer

__all__ = ["Normalized"]

Normalized = Annotated[
    bool | None,
    typer.Option(
        "--normalized/--not-normalized",
        help="Whether the head takes MiniLM vectors of norm 1; default: as it was fitted.",
    ),
]
