"""Sources by path: what a folder, a file or a table holds, and how it is read."""

from dataclasses import dataclass
from pathlib import Path

from aureole.data import ENDINGS, columns_of, read_schema
from aureole.errors import InvalidInputError, MissingInputError
from aureole.retrieval import lance_package, shown_address, table_exists
from aureole.scale._embedder import Modality
from aureole.scale._folder import FolderSource, walk
from aureole.scale._shards import SHARDS, ShardSource
from aureole.scale._source import Source
from aureole.scale._tabular import TABLES, LanceSource, TableSource


@dataclass(frozen=True)
class SourceSpec:
    """What to read, in plain values, so that each worker can open it for itself.

    Attributes
    ----------
    path
        A folder of pictures, a ``.parquet``, ``.arrow`` or ``.lance`` table, a folder of such files, a dataset as
        ``datasets`` saves it to disk, or ``.tar`` files of a WebDataset.
    modality
        What the inputs are.
    column
        The column of a table, or the ending in a WebDataset; by default the only one that fits.
    id_column
        The column of ids; by default rows have numbers.
    rows_per_chunk
        Inputs in a chunk; by default as ``chunk_size`` says.
    """

    path: str
    modality: Modality
    column: str | None = None
    id_column: str | None = None
    rows_per_chunk: int | None = None


def open_source(spec: SourceSpec) -> Source:
    """The source that a spec names."""
    kind, path = kind_of(spec.path), Path(spec.path)
    if kind in ("folder", "shards") and spec.id_column is not None:
        raise InvalidInputError(f"{path} is no table: its ids are names, and it has no columns.")
    options = (spec.modality, spec.column, spec.id_column, spec.rows_per_chunk)
    if kind == "lance":
        return LanceSource(spec.path, *options)
    if kind == "table":
        return TableSource(path, *options)
    if kind == "shards":
        return ShardSource(path, spec.modality, spec.column)
    if spec.modality != "image" or spec.column is not None:
        raise InvalidInputError(
            f"{path} is a folder of pictures, but {spec.modality}s were asked for. Put them in a table."
        )
    return FolderSource(path, spec.rows_per_chunk)


def kind_of(path: str) -> str:
    """'lance', 'table', 'shards' or 'folder': what a path holds, by its ending or by the files below it."""
    if path.removesuffix("/").endswith(".lance"):
        if not table_exists(path):
            raise MissingInputError(
                f"{shown_address(path)} is not there, or is no Lance table. Check the name."
            )
        return "lance"
    place = Path(path)
    if place.is_file():
        name = place.name.lower()
        if name.endswith((*SHARDS, *TABLES)):
            return "shards" if name.endswith(SHARDS) else "table"
        raise InvalidInputError(
            f"{path} is of no kind that can be embedded; its name must end in "
            f"{', '.join((*TABLES, *SHARDS, '.lance'))}."
        )
    if not place.is_dir():
        raise MissingInputError(f"{shown_address(path)} is not there. Check the name.")
    first = next(walk(place, (*TABLES, *SHARDS, *ENDINGS)), None)
    if first is None:
        raise InvalidInputError(
            f"{path} holds nothing that can be embedded: no file's name ends in "
            f"{', '.join((*ENDINGS, *TABLES, *SHARDS))}."
        )
    name = first.lower()
    return "shards" if name.endswith(SHARDS) else "table" if name.endswith(TABLES) else "folder"


def guess_modality(path: str, column: str | None) -> Modality | None:
    """What a source's inputs are where that is plain: pictures in a folder, the type of a table's column."""
    kind = kind_of(path)
    if kind == "folder":
        return "image"
    if kind == "shards":
        return None
    if kind == "lance":
        schema = lance_package().dataset(path).schema
    else:
        place = Path(path)
        schema = read_schema(place if place.is_file() else place / next(walk(place, TABLES)))
    choices: tuple[Modality, ...] = ("image", "text", "vector")
    fit: list[Modality] = []
    for one in choices:
        if any(column in (None, name) for name in columns_of(schema, one)):
            fit.append(one)
    return fit[0] if len(fit) == 1 else None
