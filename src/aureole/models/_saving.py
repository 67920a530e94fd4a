"""Saved models: a folder with ``config.json`` and ``weights.safetensors``. No code is stored, and none is run.

A config describes a network by its kind and a few integers. Kinds are looked up in the tables ``HEADS`` and
``BACKBONES`` below and nowhere else: an unknown kind is an error, and nothing is imported by name. The folder may also
hold a ``README.md`` for people; it is never read here.
"""

import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from aureole._io import atomic_write
from aureole.errors import InvalidInputError, MissingInputError
from aureole.models._heads import KappaFromNorm, MixtureHead, PosteriorHead
from aureole.models._networks import CifarResNet, ResidualMLP, hold_statistics, holds_statistics

CONFIG, WEIGHTS, CARD = "config.json", "weights.safetensors", "README.md"
CUSTOM = "custom"  # the kind of a network that cannot be rebuilt from numbers
LARGEST_LAYER = 65_536  # the widest layer of a network that is built
PIPELINE_HEAD = (
    "posterior"  # subfolder of the head in the folder of a sentence-transformers pipeline
)
PIPELINE_FORMAT = "aureole-sentence-posterior-1"
_LARGEST_CONFIG = 1_000_000  # bytes


MINILM_CAPTIONS = Path(__file__).parent / "minilm_captions"
# the heads that come with the library: every function and option that takes a head takes these names
PACKAGED_HEADS = {"minilm-captions": MINILM_CAPTIONS}


def find_model(name: Path | str) -> Path:
    """Return the folder of a model: an existing path, or a packaged head by its name.

    A path that does not exist is returned unchanged, so that the loader reports it.

    Examples
    --------
    >>> find_model("minilm-captions") == MINILM_CAPTIONS
    True
    """
    path = Path(name)
    return path if path.exists() else PACKAGED_HEADS.get(str(name), path)


def save_folder(
    folder: Path | str,
    config: dict[str, Any],
    weights: dict[str, Tensor],
    *,
    card: str | None = None,
) -> Path:
    """Write a model, and its card if there is one, and return the folder; each file is written atomically."""
    from safetensors.torch import save

    folder = Path(folder)
    atomic_write(folder / WEIGHTS, save(_unshared(weights)))
    atomic_write(folder / CONFIG, json.dumps(config, indent=1, allow_nan=False) + "\n")
    if card is not None:
        atomic_write(folder / CARD, card)
    return folder


def load_folder(folder: Path | str, *, format: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(Config, weights) of a folder whose config has this format.

    Safetensors hold numbers only, so an untrusted file cannot run code; ``check_weights`` checks the numbers.
    """
    folder = Path(folder)
    config = _read_config(folder)
    _require(folder / WEIGHTS)
    if config.get("format") != format:
        raise InvalidInputError(
            f"{folder / CONFIG} has the format {config.get('format')!r}, but {format!r} is expected: it is "
            "another kind of model."
        )
    return config, read_weights(folder / WEIGHTS)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidInputError(f"{path} cannot be read: {error}.") from error


def format_of(folder: Path | str) -> str | None:
    """The format in the config of a saved model, if any."""
    format = _read_config(Path(folder)).get("format")
    return format if isinstance(format, str) else None


def check_weights(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise if names, shapes or types differ from those of the model, or if a value is not finite."""
    if weights.keys() != expected.keys():
        names = sorted(weights.keys() ^ expected.keys())
        raise InvalidInputError(
            f"the weights do not fit the model: missing or unexpected tensors: {', '.join(names[:3])}."
        )
    for name, value in weights.items():
        like = expected[name]
        if value.shape != like.shape or value.dtype != like.dtype:
            raise InvalidInputError(
                f"{name} has shape {tuple(value.shape)} and type {value.dtype}, but the model needs "
                f"{tuple(like.shape)} and {like.dtype}."
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InvalidInputError(f"{name} holds NaN or infinity. The file is damaged.")


@dataclass(frozen=True)
class NetworkKind:
    """A network that can be rebuilt from integers: its class, and for each argument the attribute that holds it."""

    network: type[nn.Module]
    arguments: Mapping[str, str]
    batch_norms: bool = False  # whether it has batch norms, whose statistics may be frozen


_LINEAR = {"n_in": "linear.in_features", "dim": "linear.out_features"}
HEADS: Mapping[str, NetworkKind] = {
    "PosteriorHead": NetworkKind(
        PosteriorHead,
        {"n_in": "location.in_features", "dim": "location.out_features"}
        | {"width": "hidden.out_features"},
        batch_norms=True,
    ),
    "KappaFromNorm": NetworkKind(KappaFromNorm, _LINEAR),
    "MixtureHead": NetworkKind(
        MixtureHead, {"n_in": "location.in_features", "dim": "dim", "n_components": "n_components"}
    ),
}
# a pipeline has one embedding per sentence, so its head has one mode
PIPELINE_HEADS = {name: kind for name, kind in HEADS.items() if name != "MixtureHead"}  # one mode
_MLP = {"n_in": "first.in_features", "n_out": "last.out_features"}
_MLP |= {"width": "first.out_features", "n_blocks": "n_blocks"}
BACKBONES: Mapping[str, NetworkKind] = {
    "CifarResNet": NetworkKind(CifarResNet, {"depth": "depth"}, batch_norms=True),
    "ResidualMLP": NetworkKind(ResidualMLP, _MLP),
}
_LIMITS = {"n_components": 1024, "depth": 1024, "n_blocks": 1024}  # others: LARGEST_LAYER


def describe(network: nn.Module, kinds: Mapping[str, NetworkKind]) -> dict[str, Any]:
    """The description from which ``build`` rebuilds a network; kind "custom" and the class name if it cannot."""
    custom = {"kind": CUSTOM, "class": type(network).__name__}
    for name, kind in kinds.items():
        if type(network) is not kind.network:
            continue
        try:
            values = {key: attrgetter(at)(network) for key, at in kind.arguments.items()}
            description = {"kind": name, **values}
            if kind.batch_norms:
                description["held_statistics"] = holds_statistics(network)
            twin = build(description, kinds, device="meta")
        except (AttributeError, TypeError, InvalidInputError):  # its layers were replaced
            return custom
        return description if _signature(twin) == _signature(network) else custom
    return custom


def build(
    description: Any, kinds: Mapping[str, NetworkKind], *, device: str | None = None
) -> nn.Module:
    """The network of a description, which may come from an untrusted file. torch's random state is left alone.

    On the device "meta" no memory is allocated: use it to compare names and shapes with a file's first.
    """
    if not isinstance(description, dict):
        raise InvalidInputError(
            f"a network must be described by a kind and numbers, but is {type(description).__name__}."
        )
    name = description.get("kind")
    if not isinstance(name, str) or name not in kinds:
        got, known = str(name)[:50], ", ".join(kinds)
        raise InvalidInputError(f"unknown kind of network {got!r}; known kinds: {known}.")
    kind = kinds[name]
    arguments = {key: value for key, value in description.items() if key != "kind"}
    held = arguments.pop("held_statistics", None) if kind.batch_norms else False
    if arguments.keys() != kind.arguments.keys() or not isinstance(held, bool):
        expected = [*kind.arguments, *(["held_statistics"] if kind.batch_norms else [])]
        raise InvalidInputError(
            f"a {name} is described by {', '.join(expected) or 'its kind alone'}, not by "
            f"{', '.join(str(key)[:50] for key in arguments) or 'its kind alone'} (or an entry has the wrong type)."
        )
    for key, value in arguments.items():
        limit = _LIMITS.get(key, LARGEST_LAYER)
        if type(value) is not int or not 1 <= value <= limit:
            raise InvalidInputError(
                f"{key} of a {name} must be an integer from 1 to {limit}, but is {str(value)[:50]}."
            )
    with torch.random.fork_rng(devices=[]), torch.device(device) if device else nullcontext():
        network = kind.network(**arguments)
        return hold_statistics(network) if held else network


def load_pipeline_head(folder: Path | str) -> nn.Module:
    """The head of a sentence-transformers pipeline; its weights are checked before they are used."""
    config, weights = load_folder(folder, format=PIPELINE_FORMAT)
    description = config.get("head")
    check_weights(weights, build(description, PIPELINE_HEADS, device="meta").state_dict())
    head = build(description, PIPELINE_HEADS)
    head.load_state_dict(weights)
    return head


def _signature(network: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in network.state_dict().items()}


def _unshared(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights on the CPU without shared memory, which safetensors rejects: tied layers are written twice."""
    unshared, seen = {}, set()
    for name, value in weights.items():
        value = value.detach().cpu().contiguous()
        address = value.untyped_storage().data_ptr()
        unshared[name] = value.clone() if address in seen else value
        seen.add(address)
    return unshared


def _read_config(folder: Path) -> dict[str, Any]:
    """The config of a saved model, from an untrusted file."""
    path = folder / CONFIG
    _require(path)
    if path.stat().st_size > _LARGEST_CONFIG:
        raise InvalidInputError(f"{path} has over {_LARGEST_CONFIG} bytes: not a model's config.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not JSON: {error}.") from error
    return config if isinstance(config, dict) else {}


def _require(path: Path) -> None:
    if not path.is_file():
        raise MissingInputError(
            f"{path} is missing: {path.parent} does not hold a saved model. "
            "`aureole fit-head` and `aureole train` save one."
        )
