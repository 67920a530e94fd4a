"""The configuration of ``aureole train``: a small TOML file, validated key by key.

Not a pydantic model: every key needs its range, default and help in one place for the docs and ``--example``, and the
library itself must not depend on pydantic.
"""

import difflib
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aureole.data import short
from aureole.errors import InvalidInputError, MissingInputError

_LARGEST = 1_000_000  # bytes
_REQUIRED = object()
_PATHS = ("data.path", "data.columns_from", "data.pairs", "encoder.weights")


@dataclass(frozen=True)
class Key:
    """A key of the configuration: its type, default, help text, range and choices."""

    type: type
    default: Any
    help: str
    low: int | float = -math.inf
    high: int | float = math.inf
    choices: tuple[Any, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether the key is required."""
        return self.default is _REQUIRED

    def checked(self, name: str, value: Any) -> Any:
        """The value, if it is valid for this key."""
        if self.type is float and type(value) is int:
            value = float(value)
        if type(value) is not self.type and value not in self.choices:
            raise InvalidInputError(
                f"{name} must be {_ARTICLES[self.type]}, but is {short(value)}."
                + (f" Other valid value: {self.choices[0]!r}." if self.choices else "")
            )
        if self.type is str and self.choices and value not in self.choices:
            raise InvalidInputError(
                f"{name} must be one of {', '.join(self.choices)}, but is {short(value)}."
            )
        if type(value) in (int, float) and not self.low <= value <= self.high:
            upper = "" if math.isinf(self.high) else f" and at most {self.high:g}"
            raise InvalidInputError(
                f"{name} must be at least {self.low:g}{upper}, but is {short(value)}."
            )
        if type(value) is str and (not value or "\0" in value or len(value) > 4096):
            raise InvalidInputError(f"{name} must be a text of 1 to 4,096 characters.")
        return value


_ARTICLES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_PATH = "Parquet, Arrow or CSV file, or a folder of them"
_LOSSES = ("closed-form", "mcinfonce", "infonce")
_NETWORKS = ("resnet20", "resnet56", "resnet18")
_COMMON = {  # type, default, help, smallest and largest value
    "training.steps": Key(int, 400, "Number of training steps.", 1, 10**9),
    "training.items": Key(int, 1024, "Inputs per batch, summed over ranks.", 4, 10**7),
    "training.lr": Key(float, 4e-3, "Peak learning rate.", 1e-9, 10.0),
    "training.seed": Key(int, 0, "Seed of all randomness.", 0, 2**62),
    "training.held_out": Key(float, 0.1, "Share of the data held out from training.", 0.001, 0.9),
}
_KAPPA_POS = "Concentration of matching latents around each other"
_HEAD = {
    "encoder.dim": Key(int, 32, 'Dimension D of the sphere, or "auto".', 2, 65_536, ("auto",)),
    "encoder.width": Key(int, 128, "Hidden units of the kappa network.", 1, 65_536),
    "loss.kappa_pos": Key(float, None, f"{_KAPPA_POS} (default 2 D).", 1e-3, 1e6),
    **_COMMON,
}
_CENTRING = (
    "Weight of the squared length of the mean of mu in the closed form; prevents a tilt of all mu."
)
_DRAWN = {
    "loss.name": Key(str, _LOSSES[0], "closed-form, mcinfonce or infonce.", choices=_LOSSES),
    "loss.n_samples": Key(int, 16, "Samples per posterior for mcinfonce.", 1, 10**6),
    "loss.centring": Key(float, 0.02, _CENTRING, 0.0, 10.0),
}
KEYS: Mapping[str, Mapping[str, Key]] = {
    "vectors": {
        "data.path": Key(str, _REQUIRED, "Table of vectors: Parquet, Arrow, .npy or .safetensors."),
        "data.vector_column": Key(str, None, "Column of vectors (default: the only one)."),
        "data.group_column": Key(str, None, "Column of groups; rows with the same value match."),
        "data.columns_from": Key(str, None, "File with the groups or ids of the same rows."),
        "data.pairs": Key(str, None, "Table of matching pairs, instead of groups."),
        "data.left": Key(str, "left", "Column of the pairs table."),
        "data.right": Key(str, "right", "Other column of the pairs table."),
        "data.id_column": Key(
            str, None, "Column of the ids used in the pairs table (default: row numbers)."
        ),
        **_HEAD,
    },
    "captions": {
        "data.path": Key(str, _REQUIRED, f"{_PATH}, with texts and groups."),
        "data.text_column": Key(str, _REQUIRED, "Column of texts."),
        "data.group_column": Key(
            str, _REQUIRED, "Column of groups; texts with the same value match."
        ),
        **_HEAD,
    },
    "images": {
        "data.path": Key(str, _REQUIRED, "Folder with one subfolder of images per label."),
        "data.mirror": Key(bool, True, "Mirror half of the images."),
        "encoder.network": Key(
            str, _NETWORKS[0], "resnet20, resnet56 or resnet18.", choices=_NETWORKS
        ),
        "encoder.weights": Key(
            str, None, "Classifier weights to start from (safetensors); required on several ranks."
        ),
        "encoder.dim": Key(int, 16, "Dimension D of the sphere.", 2, 65_536),
        "loss.kappa_pos": Key(float, 16.0, f"{_KAPPA_POS}.", 1e-3, 1e6),
        **_DRAWN,
        **_COMMON,
        "training.steps": Key(int, 800, "Number of training steps.", 1, 10**9),
        "training.items": Key(int, 128, "Images per batch, summed over ranks.", 4, 10**6),
        "training.lr": Key(float, 2e-3, "Peak learning rate.", 1e-9, 10.0),
    },
    "process": {
        "data.dim": Key(int, 10, "Dimension D of the true posteriors.", 2, 4096),
        "data.kappa_low": Key(float, 16.0, "Lowest true kappa.", 1e-3, 1e6),
        "data.kappa_high": Key(float, 32.0, "Highest true kappa.", 1e-3, 1e6),
        "data.generator": Key(
            str,
            "paper",
            "Networks of the process: paper, or with whitened outputs.",
            choices=("paper", "whitened"),
        ),
        "encoder.width": Key(int, 256, "Hidden units of both networks.", 1, 65_536),
        "loss.kappa_pos": Key(float, 20.0, f"{_KAPPA_POS}.", 1e-3, 1e6),
        **_DRAWN,
        **{name: key for name, key in _COMMON.items() if name != "training.held_out"},
        "training.steps": Key(int, 1200, "Number of training steps.", 1, 10**9),
        "training.items": Key(int, 512, "Inputs per batch, summed over ranks.", 4, 10**6),
        "training.pairs": Key(int, 1500, "Average number of pairs per batch.", 1, 10**8),
    },
}
EXAMPLES: Mapping[str, str] = {
    "vectors": """[data]
kind = "vectors"
path = "vectors.parquet"
group_column = "photo"

[encoder]
dim = 32
""",
    "captions": """[data]
kind = "captions"
path = "captions.csv"
text_column = "caption"
group_column = "photo"
""",
    "images": """[data]
kind = "images"
path = "photos"            # photos/cat/1.jpg, photos/dog/2.png, ...

[encoder]
network = "resnet20"

[training]
steps = 800
""",
    "process": """[data]
kind = "process"
dim = 10

[training]
steps = 1200
""",
}


@dataclass(frozen=True)
class Config:
    """A valid configuration: the kind of data, and a value for each key of that kind."""

    kind: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def path(self, name: str) -> Path | None:
        """The value of a key as a path, or None."""
        value = self.values[name]
        return None if value is None else Path(value)

    def paths(self) -> dict[str, Path]:
        """The values that are paths, by key, without those that are None."""
        return {key: Path(self.values[key]) for key in _PATHS if self.values.get(key) is not None}


def read_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read and validate the configuration in a TOML file; ``overrides`` are ``section.key=value`` texts.

    Values of overrides are parsed as TOML, or else taken as text. Relative paths in the file are relative to its
    folder, those of overrides to the current folder.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "config.toml"
    >>> _ = path.write_text(EXAMPLES["process"])
    >>> config = read_config(path, ["training.steps=300"])
    >>> config.kind, config["training.steps"], config["data.kappa_high"]
    ('process', 300, 32.0)
    """
    path = Path(path)
    given = _flat(_read(path), str(path))
    for text in overrides:
        name, value = _override(text)
        given[name] = str(Path.cwd() / value) if name in _PATHS and type(value) is str else value
    return _check(given, path.parent)


def _check(given: dict[str, Any], folder: Path) -> Config:
    kind = given.pop("data.kind", None)
    if not isinstance(kind, str) or kind not in KEYS:
        given_kind = "missing" if kind is None else short(kind)
        raise InvalidInputError(f"data.kind must be one of {', '.join(KEYS)}, but is {given_kind}.")
    keys = KEYS[kind]
    for name in given:
        if name not in keys:
            near = difflib.get_close_matches(name[:100], keys, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else f" Valid keys: {', '.join(keys)}."
            raise InvalidInputError(f"unknown key {name[:100]!r} for data of kind {kind}.{hint}")
    values = {}
    for name, key in keys.items():
        if name in given:
            values[name] = key.checked(name, given[name])
        elif key.needed:
            raise InvalidInputError(f"{name} is missing. {key.help}")
        else:
            values[name] = key.default
    for name in _PATHS:
        if values.get(name) is not None:
            where = folder / Path(values[name]).expanduser()
            if not where.exists():
                raise MissingInputError(
                    f"{name} is {where}, which does not exist. Correct the config, or pass --set {name}=PATH."
                )
            values[name] = str(where)
    if kind == "process" and values["data.kappa_low"] > values["data.kappa_high"]:
        raise InvalidInputError("data.kappa_low must not be above data.kappa_high.")
    return Config(kind, values)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingInputError(
            f"{path} does not exist or is not a file. `aureole train --example vectors` prints one to start from."
        )
    if path.stat().st_size > _LARGEST:
        raise InvalidInputError(
            f"{path} is larger than {_LARGEST:,} bytes, which is too large for a config."
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not valid TOML: {error}.") from error


def _flat(tables: dict[str, Any], where: str) -> dict[str, Any]:
    """{section.key: value}."""
    values = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidInputError(
                f"{section[:100]!r} in {where} is outside of a section. Sections are [data], [encoder], [loss] and "
                "[training]."
            )
        values |= {f"{section}.{key}": value for key, value in table.items()}
    return values


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise InvalidInputError(
            f"{text[:100]!r} is not of the form section.key=value, such as training.steps=300."
        )
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return name.strip(), value
