"""Many runs at once, in this process or over Ray; and one run on several ranks."""

from aureole.scale.launch import launch
from aureole.scale.sweep import Failure, sweep

__all__ = ["Failure", "launch", "sweep"]
