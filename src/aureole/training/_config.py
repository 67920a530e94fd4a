"""The configuration of ``aureole train``: a small TOML file, read into one dataclass per kind of data.

By hand, because the library does not depend on pydantic, and each key needs its range and help in one place for the
docs and ``--example``.
"""

import difflib
import math
import tomllib
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, get_args, get_type_hints

from aureole.errors import InvalidInputError, MissingInputError

_TYPES = {int: "a whole number", float: "a number", str: "a text", Path: "a path"}
_LOSSES, _GENERATORS = ("closed-form", "mcinfonce", "infonce"), ("paper", "whitened")


class Key(NamedTuple):
    """The name of a value in the file, its help, its smallest value and, for a text, its choices."""

    name: str
    help: str
    low: float = -math.inf
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class VectorsConfig:
    """A head on a table of vectors whose groups or pairs are known."""

    kind: ClassVar[str] = "vectors"
    path: Annotated[Path, Key("data.path", "Table of vectors, .npy or .safetensors.")]
    vector_column: Annotated[str | None, Key("data.vector_column", "Column of vectors.")] = None
    group_column: Annotated[
        str | None, Key("data.group_column", "Column of groups; rows with the same value match.")
    ] = None
    columns_from: Annotated[
        Path | None, Key("data.columns_from", "File with the groups or ids of the same rows.")
    ] = None
    pairs: Annotated[Path | None, Key("data.pairs", "Table of pairs, instead of groups.")] = None
    left: Annotated[str, Key("data.left", "Column of the pairs table.")] = "left"
    right: Annotated[str, Key("data.right", "Other column of the pairs table.")] = "right"
    id_column: Annotated[
        str | None, Key("data.id_column", "Ids in the pairs table (default: row numbers).")
    ] = None
    dim: Annotated[
        int | str, Key("encoder.dim", 'Dimension D of the sphere, or "auto".', 2, ("auto",))
    ] = 32
    width: Annotated[int, Key("encoder.width", "Hidden units of the kappa network.", 1)] = 128
    kappa_pos: Annotated[
        float | None, Key("loss.kappa_pos", "Concentration of partners (default 2 D).", 1e-3)
    ] = None
    steps: Annotated[int, Key("training.steps", "Number of training steps.", 1)] = 400
    items: Annotated[int, Key("training.items", "Inputs per batch, over all ranks.", 4)] = 1024
    lr: Annotated[float, Key("training.lr", "Peak learning rate.", 1e-9)] = 4e-3
    seed: Annotated[int, Key("training.seed", "Seed of all randomness.", 0)] = 0
    held_out: Annotated[float, Key("training.held_out", "Share that is held out.", 1e-3)] = 0.1


@dataclass(frozen=True, kw_only=True)
class ProcessConfig:
    """Two residual networks on a process whose posteriors are known."""

    kind: ClassVar[str] = "process"
    dim: Annotated[int, Key("data.dim", "Dimension D of the true posteriors.", 2)] = 10
    kappa_low: Annotated[float, Key("data.kappa_low", "Lowest true kappa.", 1e-3)] = 16.0
    kappa_high: Annotated[float, Key("data.kappa_high", "Highest true kappa.", 1e-3)] = 32.0
    generator: Annotated[
        str, Key("data.generator", "Networks of the process.", choices=_GENERATORS)
    ] = "paper"
    width: Annotated[int, Key("encoder.width", "Hidden units of both networks.", 1)] = 256
    kappa_pos: Annotated[float, Key("loss.kappa_pos", "Concentration of partners.", 1e-3)] = 20.0
    loss: Annotated[str, Key("loss.name", "The loss.", choices=_LOSSES)] = "closed-form"
    n_samples: Annotated[int, Key("loss.n_samples", "Samples per posterior (mcinfonce).", 1)] = 16
    centring: Annotated[
        float, Key("loss.centring", "Weight of the squared length of the mean of mu.", 0)
    ] = 0.02
    steps: Annotated[int, Key("training.steps", "Number of training steps.", 1)] = 1200
    items: Annotated[int, Key("training.items", "Inputs per batch, over all ranks.", 4)] = 512
    lr: Annotated[float, Key("training.lr", "Peak learning rate.", 1e-9)] = 4e-3
    seed: Annotated[int, Key("training.seed", "Seed of all randomness.", 0)] = 0
    pairs: Annotated[int, Key("training.pairs", "Average number of pairs per batch.", 1)] = 1500

    def __post_init__(self) -> None:
        if self.kappa_low > self.kappa_high:
            raise InvalidInputError("data.kappa_low must not be above data.kappa_high.")


Config = VectorsConfig | ProcessConfig
KINDS: dict[str, type[Config]] = {"vectors": VectorsConfig, "process": ProcessConfig}
EXAMPLES = {"vectors": 'path = "vectors.parquet"\ngroup_column = "photo"', "process": "dim = 10"}


def keys_of(kind: type[Config] | Config) -> dict[str, tuple[str, Key, Any]]:
    """Return the field, the key and the default (or ``MISSING``) of each value, by its name in the file."""
    hints = get_type_hints(kind if isinstance(kind, type) else type(kind), include_extras=True)
    keys = {entry.name: hints[entry.name].__metadata__[0] for entry in fields(kind)}
    return {
        keys[entry.name].name: (entry.name, keys[entry.name], entry.default)
        for entry in fields(kind)
    }


def settings_of(config: Config) -> dict[str, Any]:
    """Return the values of a config by their names in the file."""
    return {name: getattr(config, field) for name, (field, _, _) in keys_of(config).items()}


def paths_of(config: Config) -> list[Path]:
    """Return the files and folders that a config names."""
    return [value for value in vars(config).values() if isinstance(value, Path)]


def read_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    r"""Read and validate the configuration in a TOML file; ``overrides`` are ``section.key=value`` texts.

    Values of overrides are parsed as TOML, or else taken as text. Relative paths in the file are relative to its
    folder, those of overrides to the current folder.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "config.toml"
    >>> _ = path.write_text('[data]\nkind = "process"')
    >>> config = read_config(path, ["training.steps=300"])
    >>> config.kind, config.steps, config.kappa_high
    ('process', 300, 32.0)
    """
    path = Path(path)
    if not path.is_file():
        raise MissingInputError(
            f"{path} does not exist or is not a file. `aureole train --example vectors` prints one to start from."
        )
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not valid TOML: {error}.") from error
    given = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidInputError(
                f"{section!r} in {path} is outside of a section such as [data]."
            )
        given |= {f"{section}.{key}": (value, path.parent) for key, value in table.items()}
    given |= {name: (value, Path.cwd()) for name, value in map(_override, overrides)}
    kind = given.pop("data.kind", ("missing", None))[0]
    if kind not in list(KINDS):
        raise InvalidInputError(f"data.kind must be one of {', '.join(KINDS)}, but is {kind!r}.")
    keys, types = keys_of(KINDS[kind]), get_type_hints(KINDS[kind])
    for name in given:
        if name not in keys:
            near = difflib.get_close_matches(name, keys, 1, 0.5)
            hint = f"Did you mean {near[0]}?" if near else f"Valid keys: {', '.join(keys)}."
            raise InvalidInputError(f"unknown key {name!r} for data of kind {kind}. {hint}")
    values = {}
    for name, (field, key, default) in keys.items():
        if name in given:
            values[field] = _value(key, types[field], *given[name])
        elif default is MISSING:
            raise InvalidInputError(f"{name} is missing. {key.help}")
    return KINDS[kind](**values)


def _value(key: Key, hint: Any, value: Any, folder: Path) -> Any:
    """Return a value of a config, checked against its key and type; a relative path is one of the folder."""
    kind = (get_args(hint) or (hint,))[0]
    if type(value) is str and value in key.choices:
        return value
    if key.choices and kind is str:
        raise InvalidInputError(
            f"{key.name} must be one of {', '.join(key.choices)}, but is {value!r}."
        )
    value = float(value) if kind is float and type(value) is int else value
    if type(value) is not (str if kind is Path else kind) or value == "":
        also = f" Other valid value: {key.choices[0]!r}." if key.choices else ""
        raise InvalidInputError(f"{key.name} must be {_TYPES[kind]}, but is {value!r}.{also}")
    if kind in (int, float) and not value >= key.low:
        raise InvalidInputError(f"{key.name} must be at least {key.low:g}, but is {value!r}.")
    if kind is not Path:
        return value
    place = folder / Path(value).expanduser()
    if "\0" in value or not place.exists():
        raise MissingInputError(
            f"{key.name} is {place}, which does not exist. Correct the config, or pass --set {key.name}=PATH."
        )
    return place


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise InvalidInputError(
            f"{text!r} is not of the form section.key=value, such as training.steps=300."
        )
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return name.strip(), value
