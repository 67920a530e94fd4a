"""Bulk embedding: the posteriors of a folder, a table or a WebDataset, in this process or with Ray Data."""

from aureole.embed._embed import EmbedOptions, EmbedReport, embed
from aureole.embed._embedder import Embedder, ModelSpec, load_embedder
from aureole.embed._sources import SourceSpec

__all__ = [
    "EmbedOptions",
    "EmbedReport",
    "Embedder",
    "ModelSpec",
    "SourceSpec",
    "embed",
    "load_embedder",
]
