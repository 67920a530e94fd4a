"""Saved models: a folder with ``config.json`` and ``weights.safetensors``. No code is stored, and none is run.

A ``README.md`` may lie beside them, for people; it is never read here.
"""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aureole._io import atomic_write
from aureole.errors import InvalidInputError, MissingInputError

CONFIG, WEIGHTS, CARD = "config.json", "weights.safetensors", "README.md"
_LARGEST_CONFIG = 1_000_000  # bytes


def save_folder(
    folder: Path | str,
    config: dict[str, Any],
    weights: dict[str, Tensor],
    *,
    card: str | None = None,
) -> Path:
    """Write a model, and a card about it if there is one, and return its folder; each file is whole or not there."""
    from safetensors.torch import save

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    atomic_write(folder / WEIGHTS, save(_apart(weights)))
    atomic_write(folder / CONFIG, json.dumps(config, indent=1, allow_nan=False) + "\n")
    if card is not None:
        atomic_write(folder / CARD, card)
    return folder


def load_folder(folder: Path | str, *, format: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(Config, weights) of a folder whose config names this format; an error says what is wrong with it.

    Safetensors hold numbers alone, so that a file from anywhere cannot do anything; what the numbers must be is for
    ``check_weights`` to say.
    """
    folder = Path(folder)
    weights = folder / WEIGHTS
    config = _config(folder)
    if not weights.is_file():
        raise MissingInputError(
            f"{weights} is missing: {folder} does not hold a saved model. "
            "`aureole fit-head` and `aureole train` save one."
        )
    found = config.get("format")
    if found != format:
        raise InvalidInputError(
            f"{folder / CONFIG} has the format {found!r}, but {format!r} is wanted. It was saved by something else."
        )
    return config, read_weights(weights)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name; an error names the file."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidInputError(f"{path} cannot be read: {error}.") from error


def format_of(folder: Path | str) -> str | None:
    """The format that the config of a saved model names, if it names any."""
    found = _config(Path(folder)).get("format")
    return found if isinstance(found, str) else None


def check_weights(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Refuse weights whose names, shapes or types are not those of the model, or that are not finite."""
    if found.keys() != wanted.keys():
        names = sorted(found.keys() ^ wanted.keys())
        raise InvalidInputError(
            f"the weights do not fit the model: look at {', '.join(names[:3])}."
        )
    for name, value in found.items():
        expected = wanted[name]
        if value.shape != expected.shape or value.dtype != expected.dtype:
            raise InvalidInputError(
                f"{name} has shape {tuple(value.shape)} and type {value.dtype}, but the model needs "
                f"{tuple(expected.shape)} and {expected.dtype}."
            )
        if value.is_floating_point() and not bool(torch.isfinite(value).all()):
            raise InvalidInputError(f"{name} holds NaN or infinity. The file is damaged.")


def _apart(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights on the CPU, none sharing memory with another: tied layers are written twice."""
    plain: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in weights.items():
        value = value.detach().cpu().contiguous()
        where = value.untyped_storage().data_ptr()
        plain[name] = value.clone() if where in seen else value
        seen.add(where)
    return plain


def _config(folder: Path) -> dict[str, Any]:
    """The config of a saved model, from a file that may come from anywhere."""
    path = folder / CONFIG
    if not path.is_file():
        raise MissingInputError(
            f"{path} is missing: {folder} does not hold a saved model. "
            "`aureole fit-head` and `aureole train` save one."
        )
    if path.stat().st_size > _LARGEST_CONFIG:
        raise InvalidInputError(f"{path} is larger than {_LARGEST_CONFIG} bytes; it is no config.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"{path} is not JSON that can be read: {error}.") from error
    return config if isinstance(config, dict) else {}
