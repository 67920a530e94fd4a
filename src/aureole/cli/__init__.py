"""The command line: ``aureole VERB``, one file per verb."""

from aureole.cli.app import main

__all__ = ["main"]
