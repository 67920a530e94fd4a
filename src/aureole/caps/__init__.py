"""Caps: the uncertainty of a query decides how many results it gets, on any engine."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aureole.caps._caps import (
        cap_cosine,
        class_entropy,
        latent_in_cap,
        positive_probability,
        too_wide,
        union_cosines,
    )
    from aureole.caps._conformal import ConformalMass
    from aureole.caps._hits import Explanation, Hits, explain_hits
    from aureole.caps._index import CredibleIndex
    from aureole.caps._recall import Recall
    from aureole.caps._release import ReleaseCheck, check_release
    from aureole.caps._search_options import SearchOptions

__all__ = [
    "ConformalMass",
    "CredibleIndex",
    "Explanation",
    "Hits",
    "Recall",
    "ReleaseCheck",
    "SearchOptions",
    "cap_cosine",
    "check_release",
    "class_entropy",
    "explain_hits",
    "latent_in_cap",
    "positive_probability",
    "too_wide",
    "union_cosines",
]

_MODULES = {
    "ConformalMass": "_conformal",
    "CredibleIndex": "_index",
    "Explanation": "_hits",
    "Hits": "_hits",
    "Recall": "_recall",
    "ReleaseCheck": "_release",
    "SearchOptions": "_search_options",
    "cap_cosine": "_caps",
    "check_release": "_release",
    "class_entropy": "_caps",
    "explain_hits": "_hits",
    "latent_in_cap": "_caps",
    "positive_probability": "_caps",
    "too_wide": "_caps",
    "union_cosines": "_caps",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'aureole.caps' has no attribute {name!r}")
    found = getattr(import_module(f"aureole.caps.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(__all__)
