"""Names of version 0.1 that moved. They work until 0.3, and warn."""

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

# old module: new module
MOVED = {
    "aureole.heads": "aureole.models",
    "aureole.data.processes": "aureole.data",
    "aureole.training.adapters": "aureole.training",
    "aureole.training.adapters.sentence_transformers": "aureole.training",
}


def moved(module: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a module of version 0.1: names come from the new module, with a warning."""
    new = MOVED[module]

    def getattr_moved(name: str) -> Any:
        target = import_module(new)
        if name.startswith("__") or not hasattr(target, name):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(
            f"{module}.{name} is now {new}.{name}; the old name will be removed in 0.3.",
            DeprecationWarning,
            stacklevel=2,
        )
        return getattr(target, name)

    return getattr_moved
