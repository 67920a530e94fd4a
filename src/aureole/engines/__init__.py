"""Adapters to vector engines, one module each: search, and for stores of ours write."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aureole.engines._filters import parse_filter
    from aureole.engines._schema import Origin

__all__ = ["Origin", "parse_filter"]

_MODULES = {"Origin": "_schema", "parse_filter": "_filters"}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'aureole.engines' has no attribute {name!r}")
    found = getattr(import_module(f"aureole.engines.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
