"""Modules that are imported when a command first uses them: a version, an error or a completion needs none."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import rich.console
    import rich.markup
    import rich.progress
    import rich.table
    import rich.text
    import torch

    from aureole.explorer import (
        _head as head_report,
        _match_report as match_report,
        _page as pages,
        _questions as questions,
    )
    from aureole.models import _saving as saving
    from aureole.training import _assessment as assessment
else:

    class _Lazy:
        """A module that is imported when one of its attributes or submodules is first read."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            # tools probe every object for names such as __wrapped__: that must not import the module
            if name.startswith("__") and name != "__version__":
                raise AttributeError(name)
            module = import_module(self._name)
            if not hasattr(module, name):
                import_module(f"{self._name}.{name}")
            return getattr(module, name)

    np, rich, torch = _Lazy("numpy"), _Lazy("rich"), _Lazy("torch")
    saving = _Lazy("aureole.models._saving")
    assessment = _Lazy("aureole.training._assessment")
    head_report = _Lazy("aureole.explorer._head")
    match_report = _Lazy("aureole.explorer._match_report")
    pages = _Lazy("aureole.explorer._page")
    questions = _Lazy("aureole.explorer._questions")

__all__ = [
    "assessment",
    "head_report",
    "match_report",
    "np",
    "pages",
    "questions",
    "rich",
    "saving",
    "torch",
]
