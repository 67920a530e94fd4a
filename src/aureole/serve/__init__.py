"""A gallery over HTTP: posteriors of new inputs, credible sets, match probabilities and the explorer's page.

``aureole serve`` starts the service behind uvicorn. To run it elsewhere, ``create_app(Service(index))`` is an ASGI
application. FastAPI is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aureole.serve._app import create_app
    from aureole.serve._service import Service

__all__ = ["Service", "create_app"]

_LAZY = {"Service": "_service", "create_app": "_app"}


def __getattr__(name: str) -> Any:
    """Import modules that need the extra ``serve`` on first use."""
    if name in _LAZY:
        return getattr(import_module(f"aureole.serve.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'aureole.serve' has no attribute {name!r}")
