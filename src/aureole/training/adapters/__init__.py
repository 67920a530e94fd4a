"""Moved to ``aureole.training``; this module of version 0.1 will be removed in 0.3."""

from aureole._deprecated import moved

__getattr__ = moved("aureole.training.adapters")
