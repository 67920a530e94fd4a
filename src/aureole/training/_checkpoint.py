"""Checkpoints: tensors as safetensors and the rest as JSON in their header, whole or not at all. Never pickle."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from aureole._io import atomic_file
from aureole.errors import InvalidInputError

_FORMAT = "aureole-checkpoint-1"


def save_checkpoint(path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    """Write tensors and JSON-able state to one file, atomically."""
    from safetensors.torch import save_file

    # a figure of the curve may be NaN, which ``load_checkpoint`` reads as Python writes it
    header = {"format": _FORMAT, "state": json.dumps(state)}
    plain = {k: v.detach().contiguous() for k, v in tensors.items()}
    with atomic_file(path) as file:
        save_file(plain, file.name, metadata=header)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """(Tensors, state) of a file; an error names the file and what is wrong with it."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as handle:
            header = handle.metadata() or {}
            if header.get("format") != _FORMAT:
                raise InvalidInputError(
                    f"{path} is not a checkpoint of this version ({header.get('format')!r} instead of {_FORMAT!r}). "
                    "Delete it to start afresh."
                )
            tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
            return tensors, json.loads(header["state"])
    except (SafetensorError, json.JSONDecodeError, KeyError) as error:
        raise InvalidInputError(
            f"{path} cannot be read as a checkpoint: {error}. Delete it to start afresh."
        ) from error
