"""A gallery over HTTP: posteriors of new inputs, credible sets, the least certain items; and a client for it.

``aureole serve`` starts the service; :class:`~aureole.serve.client.Client` asks it, and needs the standard library
alone. FastAPI, uvicorn and prometheus_client are imported in ``app``, ``server`` and ``metrics``, when used.
"""

from aureole.serve.client import Client, ServiceError

__all__ = ["Client", "ServiceError"]
