"""Options and inputs that several commands share; ``expanded`` lets a command take its options in groups."""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer import Argument, Option

import aureole as au
from aureole._io import check_local
from aureole.cli._lazy import head_report, np, pages, saving
from aureole.cli._output import rows_bar
from aureole.errors import EncoderError, InvalidInputError

KEY = "AUREOLE_API_KEY"  # environment variable: the API key of a service, for operator and client


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each dataclass parameter of a command by one option per field, as Typer reads flat signatures only.

    The options of a dataclass share a panel of the help, whose title is the first line of its docstring. Its fields
    are ``option(...)``, or annotated for Typer.

    Examples
    --------
    >>> @dataclass(frozen=True)
    ... class Sizes:
    ...     'Sizes of an index.'
    ...
    ...     lists: int = option("Number of lists.", 4)
    >>> @expanded
    ... def build(name: str, sizes: Sizes) -> None:
    ...     print(name, sizes)
    >>> build(name="a", lists=3)
    a Sizes(lists=3)
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    flat = [
        parameter
        for each in inspect.signature(command).parameters.values()
        for parameter in (
            _fields(groups[each.name])
            if each.name in groups
            else [each.replace(annotation=hints[each.name], kind=each.KEYWORD_ONLY)]
        )
    ]

    @wraps(command)
    def call(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{entry.name: values.pop(entry.name) for entry in fields(group)})
        command(**values)

    call.__signature__ = inspect.Signature(flat)  # pyright: ignore[reportAttributeAccessIssue]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
    return call


def _fields(group: Any) -> Iterator[inspect.Parameter]:
    """Yield the fields of a dataclass as parameters for Typer."""
    hints = get_type_hints(group, include_extras=True)
    for entry in fields(group):
        kind, info = hints[entry.name], entry.metadata.get("option")
        if info is None:
            kind, info = get_args(kind)
        info = copy(info)
        info.rich_help_panel = (group.__doc__ or "").partition("\n")[0].removesuffix(".")
        annotation = Annotated[kind, info]
        yield inspect.Parameter(
            entry.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if entry.default is MISSING else entry.default,
            annotation=annotation,
        )


def option(help: str, default: Any = None, *flags: str, **settings: Any) -> Any:
    """Return a field of a dataclass for ``expanded``; the settings are those of ``typer.Option``, such as ``min``."""
    return field(default=default, metadata={"option": Option(*flags, help=help, **settings)})


def _find_model(name: str) -> Path:
    return saving.find_model(name)


def parse_spec(text: str) -> str:
    """Return a specification of an encoder; the name of a packaged head becomes its folder.

    Only the command line is parsed here: specifications are never read from data.
    """
    if au.encoders._resolver.is_spec(text) or au.data._addresses.is_remote(text):
        return text
    return str(_find_model(text))


_ENCODER = "Encoder of texts or pictures, such as sentence-transformers:NAME, timm:NAME or python:MODULE:FUNCTION."
EncoderSpec = Annotated[str | None, Option(help=_ENCODER, metavar="SPEC", parser=parse_spec)]

_HEAD: Any = Option(
    help="Folder of a head saved by fit-head, or minilm-captions.",
    metavar="DIR|NAME",
    parser=_find_model,
)
Head = Annotated[Path, _HEAD]
OptionalHead = Annotated[Path | None, _HEAD]
Gallery = Annotated[str, Argument(help="Address of the gallery.", metavar="ADDRESS")]
Vectors = Annotated[
    Path,
    Argument(help="Table: a file, a folder of files, or a folder of pictures.", metavar="TABLE"),
]
_VECTORS = Option(help="Column of vectors (default: the only one that holds lists).")
VectorColumn = Annotated[str | None, _VECTORS]
IdColumn = Annotated[str | None, Option(help="Column of ids (default: row numbers from 0).")]
AsJson = Annotated[bool, Option("--json", help="Print the results as one JSON object.")]


@dataclass(frozen=True)
class GroupedVectors:
    """The columns of a table of vectors with groups."""

    vector_column: VectorColumn = None
    group_column: str | None = option("Column of groups: rows with the same value are positives.")
    columns_from: Path | None = option(
        "File with the other columns, in the same row order (default: the table)."
    )

    @property
    def in_array(self) -> bool:
        """Whether the other columns are an array, which has no names of columns."""
        return (
            self.columns_from is not None
            and self.columns_from.suffix in au.data._array_files.ARRAYS
        )


def check_out(out: Path, what: str, *, overwrite: bool, file: str = "config.json") -> None:
    """Raise if ``out`` holds anything but a model to be overwritten, which has this file."""
    check_local(out)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / file).is_file():
        raise InvalidInputError(
            f"{out} already exists and is not a saved {what}. Choose another folder for --out."
        )
    if not overwrite:
        raise InvalidInputError(
            f"{out} already holds a saved {what}. Add --overwrite to replace it, or choose another folder for --out."
        )


def run_digest(settings: list[Any], files: Iterable[Path | au.data._addresses.RemotePath]) -> str:
    """Return a hash of settings and input files (path, size, time), which identifies a run to resume."""
    state = []
    for file in dict.fromkeys(files):
        if isinstance(file, au.data._addresses.RemotePath):
            state.append(file.state())
            continue
        stat = file.stat()
        state.append([str(file.resolve()), stat.st_size, stat.st_mtime_ns])
    return hashlib.sha256(json.dumps([state, settings], default=str).encode()).hexdigest()[:12]


IMAGE, LABEL = "image", "label"  # the columns of a folder of pictures


@dataclass(frozen=True)
class InputOptions:
    """Texts or pictures, and the encoder that turns them into vectors."""

    encoder: EncoderSpec = None
    text_column: str | None = option("Column of texts.")
    image_column: str | None = option(
        "Column of pictures: bytes, or paths relative to the table (default for a folder of pictures)."
    )

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
    def kind(self) -> au.encoders._encoder.Kind:
        """Return what the column holds."""
        return "text" if self.text_column else "image"

    def load(self, head: Path | None = None) -> au.encoders.Encoder | None:
        """Return the encoder, with vectors as the head takes them; None without --encoder."""
        if self.encoder is None:
            return None
        encoder = au.encoders.load(self.encoder, self.kind)
        if head is not None:
            from aureole.embed._embedder import fit_to_head

            fit_to_head(encoder, head)
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
            from aureole.encoders._bulk import encode_all

            column = self.column(table)
            assert column is not None  # checked
            inputs = au.data._tables.scan_inputs(table, column, self.kind)
            options = {"work": work, "resume": resume, "observer": observer}
            return encode_all(encoder, inputs, **options)

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
