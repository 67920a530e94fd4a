"""The config of ``aureole train``: a small TOML file, checked key by key."""

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
_NEEDED = object()
_PATHS = ("data.path", "data.columns_from", "data.pairs", "encoder.weights")


@dataclass(frozen=True)
class Key:
    """A key of the config: its type, its default, what it may be, and what it means."""

    type: type
    default: Any
    help: str
    low: int | float = -math.inf
    high: int | float = math.inf
    choices: tuple[Any, ...] = ()

    @property
    def needed(self) -> bool:
        """Whether it has no default."""
        return self.default is _NEEDED

    def checked(self, name: str, value: Any) -> Any:
        """The value, if it is what the key may be; an error names the key and what to do."""
        if self.type is float and type(value) is int:
            value = float(value)
        if type(value) is not self.type and value not in self.choices:
            raise InvalidInputError(
                f"{name} must be {_ARTICLES[self.type]}, but is {short(value)}."
                + (f" Possible is also {self.choices[0]!r}." if self.choices else "")
            )
        if self.type is str and self.choices and value not in self.choices:
            raise InvalidInputError(
                f"{name} must be one of {', '.join(self.choices)}, but is {short(value)}."
            )
        if type(value) in (int, float) and not self.low <= value <= self.high:
            upper = "" if math.isinf(self.high) else f" and {self.high:g} at most"
            raise InvalidInputError(
                f"{name} must be {self.low:g} or more{upper}, but is {short(value)}."
            )
        if type(value) is str and (not value or "\0" in value or len(value) > 4096):
            raise InvalidInputError(f"{name} must hold a text of 1 to 4,096 characters.")
        return value


_ARTICLES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_PATH = "A Parquet, Arrow or CSV file, or a folder of them"
_COMMON = {
    "training.steps": Key(int, 400, "Batches to train on.", low=1, high=10**9),
    "training.items": Key(int, 1024, "Inputs a batch, over all ranks.", low=4, high=10**7),
    "training.lr": Key(float, 4e-3, "The learning rate at its highest.", low=1e-9, high=10.0),
    "training.seed": Key(int, 0, "Decides everything random.", low=0, high=2**62),
    "training.held_out": Key(
        float, 0.1, "The share that is never trained on.", low=0.001, high=0.9
    ),
}
_HEAD = {
    "encoder.dim": Key(
        int, 32, 'The D of the posteriors\' sphere, or "auto".', 2, 65_536, ("auto",)
    ),
    "encoder.width": Key(int, 128, "The width of the network for kappa.", low=1, high=65_536),
    "loss.kappa_pos": Key(
        float, None, "How close partners' latents are; default 2 D.", low=1e-3, high=1e6
    ),
    **_COMMON,
}
_DRAWN = {
    "loss.name": Key(
        str,
        "closed-form",
        "closed-form, mcinfonce or infonce.",
        choices=("closed-form", "mcinfonce", "infonce"),
    ),
    "loss.n_samples": Key(int, 16, "Draws of mcinfonce.", low=1, high=10**6),
    "loss.centring": Key(
        float,
        0.02,
        "Weight of the squared length of the mean of mu in the closed form; against the tilt.",
        low=0.0,
        high=10.0,
    ),
}
KEYS: Mapping[str, Mapping[str, Key]] = {
    "vectors": {
        "data.path": Key(str, _NEEDED, "A table of vectors: Parquet, Arrow, .npy, .safetensors."),
        "data.vector_column": Key(str, None, "Its column of vectors; default: the only one."),
        "data.group_column": Key(str, None, "Rows with the same value are partners."),
        "data.columns_from": Key(str, None, "The file with the groups, row by row."),
        "data.pairs": Key(str, None, "A table of pairs of partners, instead of groups."),
        "data.left": Key(str, "left", "A column of the pairs."),
        "data.right": Key(str, "right", "The other column of the pairs."),
        "data.id_column": Key(str, None, "The ids that pairs name; default: row numbers."),
        **_HEAD,
    },
    "captions": {
        "data.path": Key(str, _NEEDED, f"{_PATH}, with texts and groups."),
        "data.text_column": Key(str, _NEEDED, "Its column of texts."),
        "data.group_column": Key(str, _NEEDED, "Texts with the same value are partners."),
        **_HEAD,
    },
    "images": {
        "data.path": Key(str, _NEEDED, "A folder with a folder of pictures for each label."),
        "data.mirror": Key(bool, True, "Show half of the pictures mirrored."),
        "encoder.network": Key(
            str,
            "resnet20",
            "resnet20, resnet56 or resnet18.",
            choices=("resnet20", "resnet56", "resnet18"),
        ),
        "encoder.weights": Key(
            str, None, "A classifier's weights to start from, as safetensors; needed on ranks."
        ),
        "encoder.dim": Key(int, 16, "The D of the posteriors' sphere.", low=2, high=65_536),
        "loss.kappa_pos": Key(float, 16.0, "How close partners' latents are.", 1e-3, 1e6),
        **_DRAWN,
        **_COMMON,
        "training.steps": Key(int, 800, "Batches to train on.", low=1, high=10**9),
        "training.items": Key(int, 128, "Pictures a batch, over all ranks.", low=4, high=10**6),
        "training.lr": Key(float, 2e-3, "The learning rate at its highest.", low=1e-9, high=10.0),
    },
    "process": {
        "data.dim": Key(int, 10, "The D of the true posteriors.", low=2, high=4096),
        "data.kappa_low": Key(float, 16.0, "The lowest true kappa.", low=1e-3, high=1e6),
        "data.kappa_high": Key(float, 32.0, "The highest true kappa.", low=1e-3, high=1e6),
        "data.generator": Key(
            str,
            "paper",
            "The true networks: paper, or whitened outputs.",
            choices=("paper", "whitened"),
        ),
        "encoder.width": Key(int, 256, "The width of both networks.", low=1, high=65_536),
        "loss.kappa_pos": Key(float, 20.0, "How close partners' latents are.", 1e-3, 1e6),
        **_DRAWN,
        **{name: key for name, key in _COMMON.items() if name != "training.held_out"},
        "training.steps": Key(int, 1200, "Batches to train on.", low=1, high=10**9),
        "training.items": Key(int, 512, "Inputs a batch, over all ranks.", low=4, high=10**6),
        "training.pairs": Key(int, 1500, "Pairs a batch on average.", low=1, high=10**8),
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
    """A checked config: the kind of its data, and a value for each key of that kind."""

    kind: str
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def path(self, name: str) -> Path | None:
        """The path that a key names, if it names one."""
        found = self.values[name]
        return None if found is None else Path(found)


def read_config(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """The config in a TOML file, with ``section.key=value`` of ``overrides`` in place of what stands there.

    Values of overrides are TOML; what is not, is a text. Paths in the file are below its folder, and those of overrides
    below the current one, unless they are absolute. An error names the key and what to do.

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
        found = "missing" if kind is None else short(kind)
        raise InvalidInputError(f"data.kind must be one of {', '.join(KEYS)}, but is {found}.")
    keys = KEYS[kind]
    for name in given:
        if name not in keys:
            near = difflib.get_close_matches(name[:100], keys, 1, 0.5)
            hint = f" Did you mean {near[0]}?" if near else f" It has {', '.join(keys)}."
            raise InvalidInputError(f"a config of {kind} has no key {name[:100]!r}.{hint}")
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
                    f"{name} names {where}, which is not there. Mend the config, or give --set {name}=PATH."
                )
            values[name] = str(where)
    if kind == "process" and values["data.kappa_low"] > values["data.kappa_high"]:
        raise InvalidInputError("data.kappa_low must not be above data.kappa_high.")
    return Config(kind, values)


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise MissingInputError(
            f"{path} is not there, or is no file. `aureole train --example vectors` prints one to start from."
        )
    if path.stat().st_size > _LARGEST:
        raise InvalidInputError(f"{path} is larger than {_LARGEST:,} bytes; it is no config.")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not TOML: {error}.") from error


def _flat(tables: dict[str, Any], where: str) -> dict[str, Any]:
    """{section.key: value}."""
    found = {}
    for section, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidInputError(
                f"{section[:100]!r} of {where} stands outside of a section; sections are [data], [encoder], [loss] and "
                "[training]."
            )
        found |= {f"{section}.{key}": value for key, value in table.items()}
    return found


def _override(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise InvalidInputError(
            f"{text[:100]!r} sets nothing: give section.key=value, such as training.steps=300."
        )
    try:
        return name.strip(), tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, KeyError, RecursionError):
        return name.strip(), value
