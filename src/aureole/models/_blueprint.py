"""Blueprints: networks as plain data (a kind and a few numbers), and the networks that are built from them.

A blueprint names its network in a table below. Nothing is imported or run by name: a kind that is not in the table is
refused, whoever wrote it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from aureole.errors import InvalidInputError
from aureole.models._backbones import CifarResNet, ResNet18, hold_statistics, holds_statistics
from aureole.models._heads import KappaFromNorm, KappaFromPrototypes, MixtureHead
from aureole.models._networks import ResidualMLP

CUSTOM = "custom"
_LAYER, _COUNT = 65_536, 1024  # the widest layer, and the most layers, of a network that is built


@dataclass(frozen=True)
class Kind:
    """A network that can be built from numbers: its class, its arguments' upper limits, and how to read them off."""

    network: type[nn.Module]
    limits: Mapping[str, int]
    arguments: Callable[[Any], dict[str, int]]
    held: bool = False  # whether it has batch norms, whose statistics may be held


HEADS: Mapping[str, Kind] = {
    "KappaFromNorm": Kind(
        KappaFromNorm,
        {"n_in": _LAYER, "dim": _LAYER},
        lambda head: {"n_in": head.linear.in_features, "dim": head.linear.out_features},
    ),
    "KappaFromPrototypes": Kind(
        KappaFromPrototypes,
        {"n_in": _LAYER, "dim": _LAYER, "n_prototypes": _LAYER},
        lambda head: {
            "n_in": head.linear.in_features,
            "dim": head.linear.out_features,
            "n_prototypes": head.votes.out_features,
        },
    ),
    "MixtureHead": Kind(
        MixtureHead,
        {"n_in": _LAYER, "dim": _LAYER, "n_components": _COUNT},
        lambda head: {
            "n_in": head.location.in_features,
            "dim": head.location.out_features // head.n_components,
            "n_components": head.n_components,
        },
    ),
}
BACKBONES: Mapping[str, Kind] = {
    "CifarResNet": Kind(
        CifarResNet,
        {"depth": _COUNT},
        lambda network: {"depth": 6 * len(network.layer1) + 2},
        held=True,
    ),
    "ResNet18": Kind(ResNet18, {}, lambda _: {}, held=True),
    "ResidualMLP": Kind(
        ResidualMLP,
        {"n_in": _LAYER, "n_out": _LAYER, "width": _LAYER, "n_blocks": _COUNT},
        lambda network: {
            "n_in": network.first.in_features,
            "n_out": network.last.out_features,
            "width": network.first.out_features,
            "n_blocks": len(network.blocks),
        },
    ),
}


def describe(network: nn.Module, known: Mapping[str, Kind]) -> dict[str, Any]:
    """The blueprint of a network; of one that cannot be rebuilt from numbers, the kind "custom" and its class's name.

    Examples
    --------
    >>> describe(KappaFromNorm(64, 16), HEADS)
    {'kind': 'KappaFromNorm', 'n_in': 64, 'dim': 16}
    >>> describe(nn.Linear(3, 4), BACKBONES)
    {'kind': 'custom', 'class': 'Linear'}
    """
    custom = {"kind": CUSTOM, "class": type(network).__name__}
    for name, kind in known.items():
        if type(network) is not kind.network:
            continue
        try:
            blueprint = {"kind": name, **kind.arguments(network)}
            if kind.held:
                blueprint["held_statistics"] = holds_statistics(network)
            twin = outline(blueprint, known)
        except (AttributeError, TypeError, InvalidInputError):  # its layers were replaced by others
            return custom
        return blueprint if _signature(twin) == _signature(network) else custom
    return custom


def outline(blueprint: Any, known: Mapping[str, Kind]) -> nn.Module:
    """The network of a blueprint without memory for its weights: their names and shapes can be compared with a file's.

    An error says what is wrong with a blueprint that is no such thing.
    """
    with torch.device("meta"):
        return _network(blueprint, known)


def build(blueprint: Any, known: Mapping[str, Kind]) -> nn.Module:
    """The network of a blueprint. The state of torch's random numbers stays as it was."""
    with torch.random.fork_rng(devices=[]):
        return _network(blueprint, known)


def _network(blueprint: Any, known: Mapping[str, Kind]) -> nn.Module:
    if not isinstance(blueprint, dict):
        raise InvalidInputError(
            f"a network must be described by a kind and numbers, but is {type(blueprint).__name__}."
        )
    name = blueprint.get("kind")
    if not isinstance(name, str) or name not in known:
        raise InvalidInputError(
            f"there is no network of the kind {str(name)[:50]!r} here; known are {', '.join(known)}."
        )
    kind = known[name]
    arguments = {key: value for key, value in blueprint.items() if key != "kind"}
    held = arguments.pop("held_statistics", None) if kind.held else False
    if arguments.keys() != kind.limits.keys() or not isinstance(held, bool):
        wanted = [*kind.limits, *(["held_statistics"] if kind.held else [])]
        raise InvalidInputError(
            f"the blueprint of a {name} has the entries {', '.join(wanted) or 'none'}, not "
            f"{', '.join(str(key)[:50] for key in arguments) or 'none'} (or one of a wrong type)."
        )
    for key, limit in kind.limits.items():
        value = arguments[key]
        if type(value) is not int or not 1 <= value <= limit:
            raise InvalidInputError(
                f"{key} of a {name} must be an integer from 1 to {limit}, but is {str(value)[:50]}."
            )
    network = kind.network(**arguments)
    return hold_statistics(network) if held else network


def _signature(network: nn.Module) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (value.shape, value.dtype) for name, value in network.state_dict().items()}
