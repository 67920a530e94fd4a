"""Moved to ``aureole.training``; pipelines saved by version 0.1 name this module. It will be removed in 0.3."""

from aureole._deprecated import moved

__getattr__ = moved("aureole.training.adapters.sentence_transformers")
