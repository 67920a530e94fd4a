"""The command line: ``aureole VERB``, one file per verb."""

from aureole.cli._app import (
    main,
)
from aureole.cli._progress import (
    sweep_bar,
    training_bar,
)

__all__ = [
    "main",
]
