"""A gallery over HTTP: posteriors of new inputs, credible sets, the least certain items; and a client for it.

``aureole serve`` starts the service; programs call it with :class:`Client`. FastAPI, uvicorn, prometheus_client and
httpx are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aureole.serve._client import Client, MatchResult, SearchResult, ServiceError

if TYPE_CHECKING:
    from aureole.serve._app import create_app
    from aureole.serve._batching import BatchOptions
    from aureole.serve._keys import ApiKeys, check_key
    from aureole.serve._limits import Limits
    from aureole.serve._middleware import Metrics
    from aureole.serve._model_process import SubprocessEmbedder
    from aureole.serve._pictures import Pictures
    from aureole.serve._request_log import set_up_log
    from aureole.serve._server import Server, address_of, bound_socket
    from aureole.serve._service import Service
    from aureole.serve._tracing import Tracing

__all__ = ["Client", "MatchResult", "SearchResult", "ServiceError"]

_LAZY = {
    "ApiKeys": "_keys",
    "check_key": "_keys",
    "set_up_log": "_request_log",
    "create_app": "_app",
    "BatchOptions": "_batching",
    "Limits": "_limits",
    "Metrics": "_middleware",
    "Pictures": "_pictures",
    "Server": "_server",
    "Service": "_service",
    "SubprocessEmbedder": "_model_process",
    "Tracing": "_tracing",
    "address_of": "_server",
    "bound_socket": "_server",
}


def __getattr__(name: str) -> Any:
    """Import modules that need the extra ``serve`` on first use."""
    if name in _LAZY:
        return getattr(import_module(f"aureole.serve.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'aureole.serve' has no attribute {name!r}")
