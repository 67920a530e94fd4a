"""Many inputs and many runs at once, in this process or over Ray on a laptop or a cluster; one run on several ranks."""

from aureole.scale.embed import EmbedReport, embed
from aureole.scale.launch import launch
from aureole.scale.sweep import Failure, sweep

__all__ = ["EmbedReport", "Failure", "embed", "launch", "sweep"]
