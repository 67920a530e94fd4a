"""Credible retrieval: the uncertainty of a query decides how many results it gets, on real vector engines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aureole.retrieval._caps import (
        cap_cosine,
        class_entropy,
        latent_in_cap,
        positive_probability,
        too_wide,
        union_cosines,
    )
    from aureole.retrieval._conformal import ConformalMass
    from aureole.retrieval._filters import parse_filter
    from aureole.retrieval._hits import Explanation, Hits, explain_hits
    from aureole.retrieval._index import CredibleIndex
    from aureole.retrieval._langchain import LangChainMatchRetriever
    from aureole.retrieval._llama_index import LlamaIndexMatchRetriever
    from aureole.retrieval._match import MatchCalibrator
    from aureole.retrieval._match_filter import Matches, MatchFilter
    from aureole.retrieval._match_gallery import GalleryMatcher, GalleryMatches, MatchOptions
    from aureole.retrieval._match_quality import MatchQuality
    from aureole.retrieval._match_sets import SetSizes, compare_set_sizes
    from aureole.retrieval._recall import Recall
    from aureole.retrieval._release import ReleaseCheck, check_release
    from aureole.retrieval._schema import Origin
    from aureole.retrieval._search_options import SearchOptions

__all__ = [
    "ConformalMass",
    "CredibleIndex",
    "Explanation",
    "GalleryMatcher",
    "GalleryMatches",
    "Hits",
    "LangChainMatchRetriever",
    "LlamaIndexMatchRetriever",
    "MatchCalibrator",
    "MatchFilter",
    "MatchOptions",
    "MatchQuality",
    "Matches",
    "Origin",
    "Recall",
    "ReleaseCheck",
    "SearchOptions",
    "SetSizes",
    "cap_cosine",
    "check_release",
    "class_entropy",
    "compare_set_sizes",
    "explain_hits",
    "latent_in_cap",
    "parse_filter",
    "positive_probability",
    "too_wide",
    "union_cosines",
]

_MODULES = {
    "_caps": (
        "cap_cosine",
        "class_entropy",
        "latent_in_cap",
        "positive_probability",
        "too_wide",
        "union_cosines",
    ),
    "_conformal": ("ConformalMass",),
    "_filters": ("parse_filter",),
    "_hits": (
        "Explanation",
        "Hits",
        "explain_hits",
    ),
    "_index": ("CredibleIndex",),
    "_langchain": ("LangChainMatchRetriever",),
    "_llama_index": ("LlamaIndexMatchRetriever",),
    "_match": ("MatchCalibrator",),
    "_match_filter": (
        "MatchFilter",
        "Matches",
    ),
    "_match_gallery": (
        "GalleryMatcher",
        "GalleryMatches",
        "MatchOptions",
    ),
    "_match_quality": ("MatchQuality",),
    "_match_sets": (
        "SetSizes",
        "compare_set_sizes",
    ),
    "_recall": ("Recall",),
    "_release": (
        "ReleaseCheck",
        "check_release",
    ),
    "_schema": ("Origin",),
    "_search_options": ("SearchOptions",),
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is first used."""
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(f"aureole.retrieval.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module 'aureole.retrieval' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
