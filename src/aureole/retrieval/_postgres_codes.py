"""Compressed indexes of PostgreSQL galleries: ivfflat over ``halfvec``, half the size of the vectors, up to D = 4,000.

The error of float16 needs no measurement, it has a bound. What is measured is the number of probes. Sign bits
(``bit`` with Hamming distances) would take a sixteenth of that, but their error is so large that most rows of a gallery
would be candidates.
"""

from typing import Any

import numpy as np

from aureole.retrieval._compression import Compression
from aureole.retrieval._postgres_connection import tune
from aureole.retrieval._quantisation import measure_index, sample_size
from aureole.retrieval._schema import Rows

LARGEST_HALF = 4_000  # dimensions of an index in pgvector
_MARGIN = 1.2  # more rows than those that are looked for, since float16 reorders them


def half_compression(dim: int) -> Compression:
    r"""The compression to float16, with a bound on its error.

    Both vectors are rounded, each component by at most :math:`2^{-11}` of itself or, below the smallest normal number,
    by :math:`2^{-25}`, so the inner product of unit vectors changes by at most
    :math:`2 \cdot 2^{-11} + 2^{-22} + 2^{-23} \sqrt{D}`.

    Examples
    --------
    >>> half_compression(128).bytes, round(half_compression(128).widening(0.5), 6)
    (256, 0.000978)
    """
    error = 2.0**-10 + 2.0**-22 + 2.0**-23 * dim**0.5
    return Compression("half", 2 * dim, ((-1.0, error),))


def half_distance(sql: Any, dim: int) -> Any:
    """The negative inner product with a query, a parameter, as the index computes it."""
    kind = sql.SQL("halfvec({})").format(sql.Literal(dim))
    return sql.SQL("(mu::{}) <#> %s::{}").format(kind, kind)


def choose_probes(store: Any, connection: Any, lists: int, sizes: dict[str, int]) -> dict[str, int]:
    """The sizes of the index, with the number of probes that near rows need unless it is given."""
    if "probes" in sizes:
        return sizes
    count = connection.execute(store._sql("SELECT count(*) FROM {table}")).fetchone()[0]
    most = sample_size(store.schema.dim)
    share = min(100.0, 100 * most / max(count, 1))
    statement = store._select(
        "SELECT {columns} FROM {table} TABLESAMPLE BERNOULLI (%s) REPEATABLE (0) LIMIT %s", ()
    )
    sample: Rows = store._rows(connection, statement, [share, most], ())
    if not len(sample):
        return sizes
    sql = store._connection.psycopg.sql
    nearest = store._sql(
        "SELECT id, {distance} FROM {table} ORDER BY {distance} LIMIT %s",
        distance=half_distance(sql, store.schema.dim),
    )

    def estimate(query: np.ndarray, ids: np.ndarray, probes: int) -> tuple[np.ndarray, np.ndarray]:
        place = {name: i for i, name in enumerate(ids.tolist())}
        last = min(count, int(_MARGIN * count / len(sample) * 1000) + len(ids))
        tune(connection, {"kind": "ivf", "lists": lists, "sizes": {"probes": probes}}, last)
        records = connection.execute(nearest, [query, query, last]).fetchall()
        found = [(place[name], -distance) for name, distance in records if name in place]
        visited, scores = zip(*found, strict=True) if found else ((), ())
        return np.array(visited, np.int64), np.array(scores, np.float64)

    return measure_index(sample, count, estimate, lists, sizes)[1]
