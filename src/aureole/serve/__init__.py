"""A gallery over HTTP: posteriors of new inputs, credible sets, the least certain items; and a client for it.

``aureole serve`` starts the service; :class:`Client` is for programs that call it. FastAPI, uvicorn and
prometheus_client are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aureole.serve._client import Client, ServiceError

if TYPE_CHECKING:
    from aureole.serve._app import create_app
    from aureole.serve._hosted import HostedEmbedder
    from aureole.serve._limits import Limits
    from aureole.serve._metrics import Metrics
    from aureole.serve._pictures import Pictures
    from aureole.serve._server import Server, address_of, bound_socket
    from aureole.serve._service import Service

__all__ = ["Client", "ServiceError"]

_LAZY = {
    "create_app": "_app",
    "HostedEmbedder": "_hosted",
    "Limits": "_limits",
    "Metrics": "_metrics",
    "Pictures": "_pictures",
    "Server": "_server",
    "address_of": "_server",
    "bound_socket": "_server",
    "Service": "_service",
}


def __getattr__(name: str) -> Any:
    """Import what needs the extra ``serve`` when it is first used."""
    if name in _LAZY:
        return getattr(import_module(f"aureole.serve.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'aureole.serve' has no attribute {name!r}")
