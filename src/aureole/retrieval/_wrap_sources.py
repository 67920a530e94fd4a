"""Which adapter wraps an index, a table, a client or an address."""

import os
from dataclasses import replace
from typing import Any

from aureole.errors import InvalidInputError
from aureole.retrieval._store import Names, shown_address
from aureole.retrieval._wrap import Source, WrappedStore, check_kappa


def wrapped_store(source: Any, names: Names, kappa: Any) -> WrappedStore:
    """The store around an index, table, collection or address."""
    kappa = check_kappa(kappa)
    read = (*names.columns, kappa) if isinstance(kappa, str) else names.columns
    found = _source_of(source, replace(names, columns=read))
    try:
        return WrappedStore(found, names, kappa)
    except BaseException:
        found.close()
        raise


def _source_of(source: Any, names: Names) -> Source:
    """The adapter for an object or address; adapters are imported when they are used."""
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source)
        if where.startswith(("postgresql://", "postgres://")):
            from aureole.retrieval._postgres import PostgresSource

            return PostgresSource(where, names)
        if where.removesuffix("/").endswith(".lance"):
            from aureole.retrieval._lance import LanceSource

            return LanceSource(where, names)
        raise InvalidInputError(
            f"{shown_address(where)!r} cannot be wrapped: use a postgresql:// address or a path that ends in .lance, "
            "or pass the index, table or client itself."
        )
    packages = {base.__module__.partition(".")[0] for base in type(source).__mro__}
    if type(source).__name__.startswith("Async"):
        raise InvalidInputError(
            f"{type(source).__name__} cannot be wrapped: pass the synchronous client or table."
        )
    if "faiss" in packages:
        from aureole.retrieval._faiss import FaissSource

        return FaissSource(source, names)
    if packages & {"lance", "lancedb"}:
        from aureole.retrieval._lance import LanceSource

        return LanceSource(source, names)
    if "qdrant_client" in packages:
        from aureole.retrieval._wrap_collections import QdrantSource

        return QdrantSource(source, names)
    if "pymilvus" in packages:
        from aureole.retrieval._wrap_collections import MilvusSource

        return MilvusSource(source, names)
    raise InvalidInputError(
        f"{type(source).__name__} cannot be wrapped: pass a faiss.Index, a Lance or LanceDB table, a QdrantClient, a "
        "MilvusClient, or a postgresql:// address."
    )
