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
from aureole.scale._follow import FollowOptions, FollowRound, follow
from aureole.scale._parallel import Failure, launch, sweep
from aureole.scale._posterior_table import errors_address
from aureole.scale._ray import build_lists, run_ranks
from aureole.scale._ray_shards import build_index
from aureole.scale._shard_processes import ShardProcesses, open_shards
from aureole.scale._sources import SourceSpec, open_source
from aureole.scale._watch import is_database

__all__ = [
    "EmbedOptions",
    "EmbedReport",
    "Embedder",
    "Failure",
    "FollowOptions",
    "FollowRound",
    "ModelSpec",
    "SourceSpec",
    "build_index",
    "build_lists",
    "embed",
    "follow",
    "launch",
    "load_embedder",
    "open_shards",
    "open_source",
    "sweep",
]
