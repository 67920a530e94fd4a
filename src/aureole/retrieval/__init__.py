"""Credible retrieval: the uncertainty of a query decides how many results it gets, on real vector engines."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aureole.retrieval._cap_tables import credible_cosines
from aureole.retrieval._caps import (
    cap_cosine,
    cap_kind,
    class_entropy,
    latent_in_cap,
    log_hit_positivity,
    positive_probability,
    too_wide,
    union_cosines,
)
from aureole.retrieval._conformal import ConformalMass, coverage_curve
from aureole.retrieval._directions import POINT, exact_cosines, stored_direction
from aureole.retrieval._engines import engine_of
from aureole.retrieval._filters import parse_filter
from aureole.retrieval._hits import (
    Explanation,
    Hits,
    describe_cap,
    explain_hits,
    pick_hits,
    times_more_likely,
)
from aureole.retrieval._index import CredibleIndex
from aureole.retrieval._lance import SCHEMA_KEY, LanceStore
from aureole.retrieval._lance_tables import (
    lance_package,
    locked,
    open_table,
    table_exists,
    to_arrow,
)
from aureole.retrieval._match import MatchCalibrator
from aureole.retrieval._match_filter import Matches, MatchFilter
from aureole.retrieval._match_gallery import (
    GalleryMatcher,
    GalleryMatches,
    MatchOptions,
    UnknownItemError,
    without_item,
)
from aureole.retrieval._match_quality import MatchQuality
from aureole.retrieval._match_sets import RuleSizes, SetSizes, compare_set_sizes
from aureole.retrieval._recall import Recall
from aureole.retrieval._release import ReleaseCheck, check_release
from aureole.retrieval._schema import (
    MAX_ID_BYTES,
    Origin,
    Rows,
    Schema,
    check_ids,
    pack_strings,
    pick_rows,
    unpack_strings,
)
from aureole.retrieval._search_options import SearchOptions
from aureole.retrieval._store import (
    Selection,
    check_address,
    check_build,
    default_lists,
    is_local,
    shown_address,
    split_address,
)

if TYPE_CHECKING:
    from aureole.retrieval._langchain import LangChainMatchRetriever
    from aureole.retrieval._llama_index import (
        LlamaIndexMatchPostprocessor,
        LlamaIndexMatchRetriever,
    )

__all__ = [
    "ConformalMass",
    "CredibleIndex",
    "Explanation",
    "GalleryMatcher",
    "GalleryMatches",
    "Hits",
    "LangChainMatchRetriever",
    "LlamaIndexMatchPostprocessor",
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

_LAZY = {
    "LangChainMatchRetriever": "_langchain",
    "LlamaIndexMatchPostprocessor": "_llama_index",
    "LlamaIndexMatchRetriever": "_llama_index",
}


def __getattr__(name: str) -> Any:
    """Import LangChain or LlamaIndex when one of their adapters is first used."""
    if name in _LAZY:
        return getattr(import_module(f"aureole.retrieval.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'aureole.retrieval' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
