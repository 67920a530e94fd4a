"""The folder of a head: its settings and what was fitted as JSON, its weights as safetensors, and a card."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from aureole.errors import InvalidInputError
from aureole.evaluation import Calibration
from aureole.models import Card, check_weights, load_folder, model_card, save_folder
from aureole.training._head_encoder import head_network

HEAD_FORMAT = "aureole-frozen-head-2"
_USAGE = (
    "import aureole as au",
    "",
    'head = au.FrozenHead.load("folder")',
    "posterior = head.predict(vectors)  # posterior.mu, posterior.kappa",
)
_LARGEST = 65_536  # features, dimensions or hidden units of a head that is read


def write_head(
    folder: Path | str,
    parameters: Mapping[str, Any],
    fitted: Mapping[str, Any],
    *,
    card: Card | None,
) -> Path:
    """Write a head of these parameters and, by their names with the underscore, fitted attributes."""
    about = replace(
        card or Card(name="A head on frozen vectors"),
        kappa_pos=fitted["kappa_pos_"],
        coverage=fitted["coverage_"],
    )
    config = {
        "format": HEAD_FORMAT,
        "parameters": dict(parameters),
        "dim": fitted["dim_"],
        "kappa_pos": fitted["kappa_pos_"],
        "n_features_in": fitted["n_features_in_"],
        "square_length": fitted["square_length_"],
        "information": fitted["information_"],
        "calibration": asdict(fitted["calibration_"]),
        "profile": list(fitted["profile_"].items()),
        "dims": list(fitted["dims_"].items()),
        "coverage": list(fitted["coverage_"].items()),
    }
    text = model_card(about, format=HEAD_FORMAT, dim=fitted["dim_"], usage=_USAGE)
    return save_folder(folder, config, fitted["encoder_"].state_dict(), card=text)


def read_head(folder: Path | str) -> tuple[dict[str, Any], dict[str, Any]]:
    """(Parameters, fitted attributes) of a head in a folder that may come from anywhere: numbers alone, checked."""
    config, weights = load_folder(folder, format=HEAD_FORMAT)
    try:
        parameters = dict(config["parameters"])
        square = config.get("square_length")  # older heads have none
        fitted: dict[str, Any] = {
            "dim_": int(config["dim"]),
            "kappa_pos_": float(config["kappa_pos"]),
            "n_features_in_": int(config["n_features_in"]),
            "square_length_": None if square is None else float(square),
            "information_": float(config["information"]),
            "calibration_": Calibration(**config["calibration"]),
            "profile_": {float(k): float(v) for k, v in config["profile"]},
            "dims_": {int(k): float(v) for k, v in config["dims"]},
            "coverage_": {float(k): float(v) for k, v in config["coverage"]},
        }
        sizes = (fitted["n_features_in_"], fitted["dim_"], int(parameters["width"]))
    except (KeyError, TypeError, ValueError, OverflowError, InvalidInputError) as error:
        raise InvalidInputError(f"the config in {folder} is damaged: {error!r}.") from error
    if not all(1 <= size <= _LARGEST for size in sizes):
        raise InvalidInputError(
            f"the config in {folder} asks for layers of {sizes}; none may be above {_LARGEST}."
        )
    if not 0 < fitted["kappa_pos_"] < float("inf"):
        raise InvalidInputError(
            f"the config in {folder} is damaged: kappa_pos is {fitted['kappa_pos_']}."
        )
    with torch.device("meta"):  # no memory is asked for before the weights are seen to fit
        outline = head_network(*sizes)
    check_weights(weights, outline.state_dict())
    encoder = head_network(*sizes)
    encoder.load_state_dict(weights)
    return parameters, {**fitted, "encoder_": encoder.requires_grad_(False).eval()}
