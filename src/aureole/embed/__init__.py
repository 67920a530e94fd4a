"""Bulk embedding: the posteriors of a folder of pictures or a table, in this process or with Ray Data."""

from aureole.embed._embed import EmbedReport, embed
from aureole.embed._embedder import Embedder, ModelSpec, load_embedder
from aureole.embed._worker import SourceSpec

__all__ = ["EmbedReport", "Embedder", "ModelSpec", "SourceSpec", "embed", "load_embedder"]
