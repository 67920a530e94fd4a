"""Options that several commands share, and ``expanded``, which lets a command take its options in groups."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer import Argument, Option

import aureole as au
from aureole._io import check_local
from aureole.errors import InvalidInputError

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
    from aureole.models._saving import find_model

    return find_model(name)


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
_OTHERS = Option(help="File with the other columns, in the same row order (default: the table).")
ColumnsFrom = Annotated[Path | None, _OTHERS]
AsJson = Annotated[bool, Option("--json", help="Print the results as one JSON object.")]
RayAddress = Annotated[str | None, Option(help="Address of a Ray cluster (default: this machine).")]
_KAPPA_POS = "Concentration of positives around a latent (default: the head's)."
KappaPos = Annotated[float | None, Option(min=0, help=_KAPPA_POS)]
_UNIT = "Scale the encoder's vectors to unit length, or not (default: as the head was fitted)."
Normalized = Annotated[bool | None, Option("--normalized/--not-normalized", help=_UNIT)]


@dataclass(frozen=True)
class GroupedVectors:
    """The columns of a table of vectors with groups."""

    vector_column: VectorColumn = None
    group_column: str | None = option("Column of groups: rows with the same value are positives.")
    columns_from: ColumnsFrom = None


@dataclass(frozen=True)
class IndexSizes:
    """Sizes of an approximate index."""

    lists: int | None = option("Number of IVF lists (default: 4 * sqrt(rows)).", min=1)
    probes: int | None = option("Lists that a search visits (default: lists / 16).", min=1)
    links: int | None = option("HNSW links per row.", min=1)
    width: int | None = option("HNSW search width (default: 128).", min=1)

    def given(self, kind: str | None) -> dict[str, int]:
        """The sizes that were set; raises if they do not belong to this kind of index."""
        sizes = {name: size for name, size in vars(self).items() if size is not None}
        allowed = {None: set(), "ivf": {"lists", "probes"}, "hnsw": {"links", "width"}}[kind]
        if not sizes.keys() <= allowed:
            raise typer.BadParameter(
                "--lists and --probes need --approximate ivf, --links and --width need hnsw."
            )
        return sizes


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
