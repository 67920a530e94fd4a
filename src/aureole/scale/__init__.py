"""Bulk embedding, sweeps over many runs, and training on several ranks: in this process, or with Ray."""

from aureole.scale._embed import EmbedOptions, EmbedReport, Progress, embed
from aureole.scale._embedder import (
    Embedder,
    Modality,
    ModelSpec,
    fit_to_head,
    is_head,
    load_embedder,
    prepare_vector,
)
from aureole.scale._parallel import Failure, launch, sweep
from aureole.scale._posterior_table import errors_address
from aureole.scale._ray import build_lists, run_ranks
from aureole.scale._sources import SourceSpec, open_source

__all__ = [
    "EmbedOptions",
    "EmbedReport",
    "Embedder",
    "Failure",
    "ModelSpec",
    "SourceSpec",
    "build_lists",
    "embed",
    "launch",
    "load_embedder",
    "open_source",
    "sweep",
]
