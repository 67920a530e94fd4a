"""Match probabilities, thresholds and abstention on top of any search, without a new encoder."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aureole.match._calibrator import MatchCalibrator
    from aureole.match._filter import Matches, MatchFilter
    from aureole.match._gallery import GalleryMatcher, MatchOptions
    from aureole.match._langchain import LangChainMatchRetriever
    from aureole.match._llama_index import LlamaIndexMatchRetriever
    from aureole.match._quality import MatchQuality

__all__ = [
    "GalleryMatcher",
    "LangChainMatchRetriever",
    "LlamaIndexMatchRetriever",
    "MatchCalibrator",
    "MatchFilter",
    "MatchOptions",
    "MatchQuality",
    "Matches",
]

_MODULES = {
    "GalleryMatcher": "_gallery",
    "LangChainMatchRetriever": "_langchain",
    "LlamaIndexMatchRetriever": "_llama_index",
    "MatchCalibrator": "_calibrator",
    "MatchFilter": "_filter",
    "MatchOptions": "_gallery",
    "MatchQuality": "_quality",
    "Matches": "_filter",
}


def __getattr__(name: str) -> Any:
    """Import the module of a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(f"module 'aureole.match' has no attribute {name!r}")
    found = getattr(import_module(f"aureole.match.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
