"""The adapter for an address, or for an index, table or client of yours. Each is imported when it is used."""

import os
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from aureole._io import check_local
from aureole.engines._addresses import check_address, is_local, shown_address
from aureole.errors import InvalidInputError

if TYPE_CHECKING:
    from aureole.engines._store import Names
    from aureole.engines._wrap import WrappedStore

_LANCE_SCHEMES = ("s3", "s3+ddb", "gs", "az", "abfss", "oss", "hf", "file", "memory")
# by the package of an object to wrap
_SOURCES = {
    "faiss": ("_faiss", "FaissSource"),
    "lance": ("_lance", "LanceSource"),
    "lancedb": ("_lance", "LanceSource"),
    "qdrant_client": ("_wrap_collections", "QdrantSource"),
    "pymilvus": ("_wrap_collections", "MilvusSource"),
}


def engine_of(where: str) -> Any:
    """The class of the store that an address selects; raises if that engine cannot store a gallery there."""
    check_address(where)
    suffix = os.path.splitext(where.removesuffix("/"))[1]
    if where.startswith(("postgresql://", "postgres://")):
        return _adapter("_postgres", "PostgresStore")
    if suffix == ".lance":
        scheme, remote, _ = where.partition("://")
        if remote and scheme not in _LANCE_SCHEMES:
            raise InvalidInputError(
                f"{shown_address(where)} has the scheme {scheme!r}, but Lance stores galleries in local folders and at "
                f"{', '.join(f'{name}://' for name in _LANCE_SCHEMES)}."
            )
        if not remote:
            check_local(where)
        return _adapter("_lance", "LanceStore")
    if where == "faiss://" or (is_local(where) and suffix == ".faiss"):
        check_local("" if where == "faiss://" else where)
        return _adapter("_faiss", "FaissStore")
    if suffix == ".faiss":
        raise InvalidInputError(
            f"{shown_address(where)} is not a local path, but FAISS stores galleries in local folders only. Use Lance "
            "(an address that ends in .lance, such as s3://bucket/name.lance) or PostgreSQL (postgresql://…)."
        )
    raise InvalidInputError(
        f"{shown_address(where)!r} names no engine: use a path that ends in .lance (LanceDB) or .faiss (FAISS), "
        "'faiss://' (FAISS in memory) or a postgresql:// address (PostgreSQL with pgvector)."
    )


def wrapped_store(source: Any, names: "Names", kappa: Any) -> "WrappedStore":
    """The store around an index, table, collection or address."""
    from aureole.engines._wrap import WrappedStore, check_kappa

    kappa = check_kappa(kappa)
    read = (*names.columns, kappa) if isinstance(kappa, str) else names.columns
    found = _source_of(source, replace(names, columns=read))
    try:
        return WrappedStore(found, names, kappa)
    except BaseException:
        found.close()
        raise


def _source_of(source: Any, names: "Names") -> Any:
    """The adapter around an object or address."""
    if isinstance(source, str | os.PathLike):
        where = os.fspath(source)
        if where.startswith(("postgresql://", "postgres://")):
            return _adapter("_postgres", "PostgresSource")(where, names)
        if where.removesuffix("/").endswith(".lance"):
            return _adapter("_lance", "LanceSource")(where, names)
        raise InvalidInputError(
            f"{shown_address(where)!r} cannot be wrapped: use a postgresql:// address or a path that ends in .lance, "
            "or pass the index, table or client itself."
        )
    kind = type(source)
    if kind.__name__.startswith("Async"):
        raise InvalidInputError(
            f"{kind.__name__} cannot be wrapped: pass the synchronous client or table."
        )
    packages = [base.__module__.partition(".")[0] for base in kind.__mro__]
    package = next((name for name in packages if name in _SOURCES), None)
    if package is None:
        raise InvalidInputError(
            f"{kind.__name__} cannot be wrapped: pass a faiss.Index, a Lance or LanceDB table, a QdrantClient, a "
            "MilvusClient, or a postgresql:// address."
        )
    return _adapter(*_SOURCES[package])(source, names)


def _adapter(module: str, name: str) -> Any:
    return getattr(import_module(f"aureole.engines.{module}"), name)
