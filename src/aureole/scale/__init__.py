"""Many runs at once: in this process, or over Ray on a laptop or a cluster."""

from aureole.scale.sweep import Failure, sweep

__all__ = ["Failure", "sweep"]
