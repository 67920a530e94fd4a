"""Addresses of galleries, shown without passwords, and the adapters that they, or your own indexes, select.

An adapter is imported when it is used.
"""

import os
import re
from dataclasses import replace
from importlib import import_module
from typing import Any

from aureole._io import check_local
from aureole.errors import InvalidInputError

_LANCE_SCHEMES = ("s3", "s3+ddb", "gs", "az", "abfss", "oss", "hf", "file", "memory")
# by the package of an object to wrap
_SOURCES = {
    "faiss": ("_faiss", "FaissSource"),
    "lance": ("_lance", "LanceSource"),
    "lancedb": ("_lance", "LanceSource"),
    "qdrant_client": ("_wrap_collections", "QdrantSource"),
    "pymilvus": ("_wrap_collections", "MilvusSource"),
}

_URL = re.compile(r"(?P<scheme>[\w+.-]+://)(?P<authority>[^/?#]*)(?P<rest>.*)", re.DOTALL)


def shown_address(where: str) -> str:
    """The address without password and connection parameters, for messages and logs.

    Examples
    --------
    >>> shown_address("postgresql://ann:secret@db.example:5432/shop?sslpassword=x#items")
    'postgresql://ann@db.example:5432/shop#items'
    >>> shown_address("galleries/shoes.lance")
    'galleries/shoes.lance'
    """
    url = _URL.fullmatch(where)
    if url is None:
        return where
    scheme, authority, rest = url.group("scheme", "authority", "rest")
    if _ambiguous(authority, rest):  # password and host cannot be distinguished
        return f"{scheme}…"
    user, _, host = authority.rpartition("@")
    user = user.partition(":")[0]
    path, _, table = rest.partition("#")
    path = path.partition("?")[0]
    return f"{scheme}{user + '@' if user else ''}{host}{path}{'#' + table if table else ''}"


def check_address(where: str) -> None:
    """Raise if part of a password could be mistaken for the host, port or table, and then be printed."""
    url = _URL.fullmatch(where)
    if url is not None and _ambiguous(url.group("authority"), url.group("rest")):
        raise InvalidInputError(
            "the address contains an @ that does not end the user and password. Write @ in them as %40, / as %2F, "
            "? as %3F and # as %23, or pass the password in PGPASSWORD or ~/.pgpass."
        )


def split_address(where: str) -> tuple[str, str]:
    """The address without its fragment, and the fragment. Every other character stays as it is.

    :func:`urllib.parse.urldefrag` drops the slashes of an empty host, which libpq needs.

    Examples
    --------
    >>> split_address("postgresql:///?service=shop#items")
    ('postgresql:///?service=shop', 'items')
    """
    address, _, fragment = where.partition("#")
    return address, fragment


def is_local(where: str) -> bool:
    """Whether the address is a path on this machine."""
    return "://" not in where


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


def wrapped_store(source: Any, names: Any, kappa: Any) -> Any:
    """The ``WrappedStore`` around an index, table, collection or address, whose columns are called ``names``."""
    from aureole.engines._wrap import WrappedStore, check_kappa

    kappa = check_kappa(kappa)
    read = (*names.columns, kappa) if isinstance(kappa, str) else names.columns
    found = _source_of(source, replace(names, columns=read))
    try:
        return WrappedStore(found, names, kappa)
    except BaseException:
        found.close()
        raise


def _source_of(source: Any, names: Any) -> Any:
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


def _ambiguous(authority: str, rest: str) -> bool:
    return authority.count("@") > 1 or "@" in rest
