"""Rows of a table as vectors: a column of vectors, or texts or pictures that an encoder turns into vectors."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

import aureole as au
from aureole.cli._lazy import head_report, np, pages, saving
from aureole.cli._options import Normalized, option
from aureole.cli._output import rows_bar
from aureole.errors import EncoderError, InvalidInputError

IMAGE, LABEL = "image", "label"  # the columns of a folder of pictures


def parse_spec(text: str) -> str:
    """Return a specification of an encoder; the name of a packaged head becomes its folder.

    Only the command line is parsed here: specifications are never read from data.
    """
    if au.encoders.is_spec(text) or au.data._addresses.is_remote(text):
        return text
    return str(saving.find_model(text))


_ENCODER = "Encoder of texts or pictures, such as sentence-transformers:NAME, timm:NAME or python:MODULE:FUNCTION."
EncoderSpec = Annotated[str | None, Option(help=_ENCODER, metavar="SPEC", parser=parse_spec)]


@dataclass(frozen=True)
class InputOptions:
    """Texts or pictures, and the encoder that turns them into vectors."""

    encoder: EncoderSpec = None
    text_column: str | None = option("Column of texts.")
    image_column: str | None = option(
        "Column of pictures: bytes, or paths relative to the table (default for a folder of pictures)."
    )
    normalized: Normalized = None

    def check(self, table: Path, *others: str | None, vector_column: str | None = None) -> None:
        """Raise if options contradict each other or the table lacks a column, before a model is loaded."""
        if self.text_column and self.image_column:
            raise typer.BadParameter("use either --text-column or --image-column, not both.")
        if self.encoder is not None and vector_column is not None:
            raise typer.BadParameter("use either --vector-column or --encoder, not both.")
        au.data._tables.check_columns(table, self.column(table), *others)
        if self.encoder is not None and self.column(table) is None:
            raise typer.BadParameter("--encoder needs --text-column or --image-column.")

    def column(self, table: Path) -> str | None:
        """Return the column of texts or pictures, if any."""
        return self.text_column or self.image_column or (IMAGE if is_pictures(table) else None)

    @property
    def kind(self) -> au.encoders.Kind:
        """Return what the column holds."""
        return "text" if self.text_column else "image"

    def load(self, head: Path | None = None) -> au.encoders.Encoder | None:
        """Return the encoder, with vectors as the head takes them; None without --encoder."""
        if self.encoder is None:
            return None
        encoder = au.encoders.load(self.encoder, self.kind)
        if head is not None:
            from aureole.embed._embedder import fit_to_head

            fit_to_head(encoder, head, self.normalized)
        elif self.normalized is not None:
            encoder.normalized = self.normalized
        return encoder

    def vectors(
        self,
        table: Path,
        encoder: au.encoders.Encoder | None,
        vector_column: str | None = None,
        *,
        work: Path | None = None,
        resume: Path | None = None,
        shown: bool = False,
    ) -> np.ndarray:
        """Return the vectors of a table [n, d], memory-mapped: its column of vectors, or a column that is encoded."""
        with rows_bar("reading" if encoder is None else "encoding", shown=shown) as observer:
            if encoder is None:
                return au.data.read_vectors(table, vector_column, work=work, observer=observer)
            column = self.column(table)
            assert column is not None  # checked
            inputs = au.data._tables.scan_inputs(table, column, self.kind)
            options = {"work": work, "resume": resume, "observer": observer}
            return au.encoders.encode_all(encoder, inputs, **options)

    def galleries(self, kappa: np.ndarray, table: Path) -> tuple[pages.Gallery, ...]:
        """Return the least and the most certain rows, if there is a column of texts or pictures to show."""
        column = self.column(table)
        if column is None:
            return ()
        rows = np.concatenate(head_report.extremes(kappa)).tolist()
        inputs = au.data._tables.pick_inputs(table, column, self.kind, rows)
        show = head_report.text_items if self.text_column else head_report.picture_items
        return show(kappa, inputs)


@contextmanager
def resumable(partial: Path) -> Iterator[None]:
    """Keep the work of a run that the same command can resume; remove it if the input has to change."""
    try:
        yield
    except EncoderError as error:
        if not (partial.is_dir() and any(partial.iterdir())):
            raise
        raise EncoderError(
            f"{error} The rows encoded so far are in {partial}: run the same command again to resume."
        ) from error
    except InvalidInputError:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    finally:
        if partial.is_dir() and not any(partial.iterdir()):
            partial.rmdir()


@lru_cache(maxsize=8)  # a folder may have millions of files
def is_pictures(table: Path) -> bool:
    """Return whether a path is a folder of pictures; a path that does not exist is not."""
    return au.data._addresses.resolve(table).is_dir() and au.data._table_files.is_picture_folder(
        table
    )


def default_group(table: Path, column: str | None) -> str | None:
    """Return the column of groups: the named one, or the class folders of a folder of pictures."""
    return LABEL if column is None and is_pictures(table) else column
