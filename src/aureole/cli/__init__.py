"""The command line: ``aureole COMMAND``, one file per command."""

from aureole.cli._app import main
from aureole.cli._options import expanded
from aureole.cli._output import progress, training_bar

__all__ = ["main"]
