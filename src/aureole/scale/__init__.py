"""Many inputs and many runs at once, in this process or over Ray on a laptop or a cluster; one run on several ranks."""

from aureole.scale._embed import (
    EmbedReport,
    Progress,
    embed,
)
from aureole.scale._embedder import (
    Embedder,
    Modality,
    load_embedder,
)
from aureole.scale._inputs import (
    prepare_picture,
    prepare_text,
    prepare_vector,
)
from aureole.scale._launch import (
    launch,
)
from aureole.scale._lists import (
    build_lists,
)
from aureole.scale._ray import (
    run_ranks,
)
from aureole.scale._sources import (
    SourceSpec,
    open_source,
)
from aureole.scale._sweep import (
    Failure,
    sweep,
)
from aureole.scale._table import (
    errors_address,
)

__all__ = [
    "EmbedReport",
    "Embedder",
    "Failure",
    "SourceSpec",
    "build_lists",
    "embed",
    "launch",
    "load_embedder",
    "open_source",
    "sweep",
]
