"""Many inputs and many runs at once: in this process, or over Ray on a laptop or a cluster."""

from aureole.scale.embed import EmbedReport, embed
from aureole.scale.sweep import Failure, sweep

__all__ = ["EmbedReport", "Failure", "embed", "sweep"]
