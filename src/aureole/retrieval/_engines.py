"""Which engine an address selects."""

from typing import Any

from aureole._io import check_local
from aureole.errors import InvalidInputError
from aureole.retrieval._faiss import FaissStore
from aureole.retrieval._lance import LanceStore
from aureole.retrieval._postgres import PostgresStore
from aureole.retrieval._store import check_address, is_local, shown_address

_LANCE_SCHEMES = ("s3", "s3+ddb", "gs", "az", "abfss", "oss", "hf", "file", "memory")


def engine_of(where: str) -> Any:
    """The class of the store that an address selects; raises if that engine cannot store a gallery there."""
    check_address(where)
    if where.startswith(("postgresql://", "postgres://")):
        return PostgresStore
    if where.removesuffix("/").endswith(".lance"):
        scheme, remote, _ = where.partition("://")
        if remote and scheme not in _LANCE_SCHEMES:
            raise InvalidInputError(
                f"{shown_address(where)} has the scheme {scheme!r}, but Lance stores galleries in local folders and at "
                f"{', '.join(f'{name}://' for name in _LANCE_SCHEMES)}."
            )
        if not remote:
            check_local(where)
        return LanceStore
    if where == "faiss://" or (is_local(where) and where.removesuffix("/").endswith(".faiss")):
        check_local("" if where == "faiss://" else where)
        return FaissStore
    if where.removesuffix("/").endswith(".faiss"):
        raise InvalidInputError(
            f"{shown_address(where)} is not a local path, but FAISS stores galleries in local folders only. Use Lance "
            "(an address that ends in .lance, such as s3://bucket/name.lance) or PostgreSQL (postgresql://…)."
        )
    raise InvalidInputError(
        f"{shown_address(where)!r} names no engine: use a path that ends in .lance (LanceDB) or .faiss (FAISS), "
        "'faiss://' (FAISS in memory) or a postgresql:// address (PostgreSQL with pgvector)."
    )
