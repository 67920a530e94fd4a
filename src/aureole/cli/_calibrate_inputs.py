"""The inputs of ``aureole calibrate``: options, tables and columns of queries, matches and items."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

import aureole as au
from aureole.cli import _labelled_queries as labelled
from aureole.cli._inputs import InputOptions
from aureole.cli._labelled_queries import Items, Labels
from aureole.cli._options import VectorColumn, option
from aureole.errors import InvalidInputError


@dataclass(frozen=True)
class QueryOptions:
    """Queries and their matches."""

    text_column: str | None = option("Column of texts to encode.")
    image_column: str | None = option("Column of pictures to encode: bytes or paths.")
    vector_column: VectorColumn = None
    match_column: str | None = option(
        "Column of matching ids: one, a list, or several separated by spaces or commas."
    )
    match_text_column: str | None = option("Column of matching texts, one per row.")
    columns_from: Path | None = option(
        "File with the matches, in the same row order (default: the table)."
    )
    made: bool = option(
        "Without labels: the table is the gallery, and halves of its texts are the queries.",
        False,
        "--made",
    )

    def check(self, encoder: str | None, gallery: GalleryOptions) -> None:
        """Raise for options that cannot be used together."""
        matched = self.match_column or self.match_text_column
        if self.made and (matched or gallery.gallery or self.columns_from):
            raise typer.BadParameter(
                "--made takes neither matches nor --gallery: the table is the gallery."
            )
        if not self.made and not matched:
            raise typer.BadParameter(
                "name the matches with --match-column or --match-text-column, or use --made."
            )
        texts = encoder is not None and self.text_column is not None
        if (self.made or gallery.gallery is None) and not texts:
            raise typer.BadParameter(
                "without --gallery, queries and items are texts: name an --encoder and a --text-column."
            )
        if gallery.gallery is None and not self.made and self.match_text_column is None:
            raise typer.BadParameter("--match-column needs --gallery or --match-text-column.")
        if gallery.gallery is not None and self.match_column and self.match_text_column:
            raise typer.BadParameter(
                "with --gallery, use either --match-column or --match-text-column."
            )
        if encoder is None and (self.text_column or self.image_column):
            raise typer.BadParameter("--text-column and --image-column need an --encoder.")


@dataclass(frozen=True)
class GalleryOptions:
    """The gallery."""

    gallery: Path | None = option(
        "Table of the items that queries are matched with (default: the matching texts)."
    )
    gallery_column: str | None = option(
        "Its column of texts, pictures or vectors (default: as for the queries)."
    )
    id_column: str | None = option("Its column of ids (default: row numbers from 0).")
    ids_from: Path | None = option(
        "File with the ids, in the same row order (default: the gallery)."
    )


@dataclass(frozen=True)
class Sources:
    """The inputs of a run: the tables, their columns, and the encoder."""

    table: Path
    queries: QueryOptions
    gallery: GalleryOptions
    inputs: InputOptions

    @property
    def item_column(self) -> str | None:
        """The column of the gallery."""
        same = self.inputs.column(self.gallery.gallery or self.table) or self.queries.vector_column
        return self.gallery.gallery_column or same

    def check(self) -> None:
        """Raise if a table or column does not exist, before a model is loaded."""
        queries, gallery = self.queries, self.gallery
        self.inputs.check(self.table, queries.vector_column, vector_column=queries.vector_column)
        matches = queries.columns_from or self.table
        au.data.check_columns(matches, queries.match_column, queries.match_text_column)
        if queries.made:
            au.data.check_columns(self.table, gallery.id_column)
        elif gallery.gallery is not None:
            au.data.check_columns(gallery.gallery, self.item_column)
            au.data.check_columns(gallery.ids_from or gallery.gallery, gallery.id_column)

    def files(self) -> list[Path | au.data.RemotePath]:
        """All files that are read."""
        paths = (self.table, self.queries.columns_from, self.gallery.gallery, self.gallery.ids_from)
        return [file for path in paths if path for file in au.data.table_files(path)]

    def has_vectors(self, path: Path) -> bool:
        """Whether the gallery holds vectors, not inputs of the encoder."""
        if path.suffix in au.data.ARRAYS or self.inputs.encoder is None:
            return True
        schema = au.data.require_columns(au.data.table_parts(path)[0], [self.item_column])
        return au.data.fitting(schema.field(self.item_column).type, "vector")

    def read(self, seed: int) -> tuple[Items, Labels]:
        """The items and the labels; vectors are read, but nothing is encoded."""
        items = self._items()
        queries, source = self.queries, self.queries.columns_from or self.table
        if queries.made:
            labels = labelled.made_labels(items, seed)
            labels.check(self.table)
            return items, labels
        texts = None
        if self.inputs.text_column is not None:
            texts = labelled.read_texts(self.table, self.inputs.text_column)
        by_text = queries.match_text_column is not None
        column = queries.match_text_column or queries.match_column
        assert column is not None  # checked
        cells: Sequence[Any] = (
            labelled.read_texts(source, column, optional=True)
            if by_text
            else labelled.read_cells(source, column)
        )
        keys: Sequence[Any] = range(len(cells)) if texts is None else texts
        if self.inputs.encoder is None:
            keys = [
                row.tobytes() for row in au.data.read_vectors(self.table, queries.vector_column)
            ]
        if len(keys) != len(cells):
            raise InvalidInputError(
                f"{self.table} has {len(keys)} queries, but {source} has {len(cells)} rows: the files do not match "
                "row by row."
            )
        read = labelled.labels_by_text if by_text else labelled.labels_by_id
        merged = read(keys, cells, items, source=source, column=column)
        labels = Labels(merged.rows, merged.matches, merged.unlabelled, texts)
        labels.check(source)
        return items, labels

    def _items(self) -> Items:
        queries, options = self.queries, self.gallery
        if queries.made:
            assert queries.text_column is not None  # checked
            texts = labelled.read_texts(self.table, queries.text_column)
            ids = options.id_column and labelled.read_ids(self.table, options.id_column)
            return Items(len(texts), ids or None, texts)
        if options.gallery is None:
            assert queries.match_text_column is not None  # checked
            source = queries.columns_from or self.table
            return labelled.items_of_pairs(source, queries.match_text_column, queries.match_column)
        ids_from, ids = options.ids_from or options.gallery, None
        if options.id_column is not None or options.ids_from is not None:
            ids = labelled.read_ids(ids_from, options.id_column)
        texts = None
        if queries.match_text_column is not None:
            assert self.item_column is not None
            texts = labelled.read_texts(options.gallery, self.item_column)
        if options.gallery.suffix in au.data.ARRAYS:
            count = len(au.data.read_vectors(options.gallery, self.item_column))
        else:
            count = sum(part.count() for part in au.data.table_parts(options.gallery))
        if ids is not None and len(ids) != count:
            raise InvalidInputError(
                f"{options.gallery} has {count} rows, but {ids_from} has {len(ids)} ids: the files do not match row by "
                "row."
            )
        return Items(count, ids, texts)
