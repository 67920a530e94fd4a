"""Compressed indexes of Lance tables: IVF_PQ or, for few rows, IVF_SQ.

IVF_RQ is not used, although it is built faster: with several bits per dimension, Lance (14) skips rows by a bound on
their one-bit distance, so a search within a distance misses some rows (0.5 % in a test) however far it is widened. The
vectors stay in the table on disk; Lance reads those of the candidates.
"""

from typing import Any

import numpy as np

from aureole.retrieval._compression import Compression, code_of
from aureole.retrieval._quantisation import measure_index, sample_places
from aureole.retrieval._schema import Rows, object_array

_TYPES = {"pq": "IVF_PQ", "scalar": "IVF_SQ"}
_TRAINING = 64  # rows per centroid
_ITERATIONS = 20  # of k-means; more change little, and 50, the default of Lance, take minutes


def index_type(compression: Compression) -> str:
    """The name that Lance gives an index with this compression."""
    return _TYPES.get(compression.code, "none of Lance")


def has_code(statistics: dict[str, Any], compression: Compression | None) -> bool:
    """Whether an index has, by its statistics, codes of the size that its note says."""
    if compression is None or compression.code != "pq":
        return True
    inner = statistics.get("sub_index", {})
    return (inner.get("num_sub_vectors"), inner.get("nbits")) == (compression.bytes, 8)


def build_codes(
    table: Any, dim: int, lists: int, sizes: dict[str, int], *, members: int
) -> tuple[Compression, dict[str, int]]:
    """Build a compressed index of the column mu; returns its compression, and the sizes with the number of probes.

    ``members`` is the number of members of the largest caps that the index is built for.
    """
    total = table.count_rows()
    code, size = code_of(dim, total)
    options = {}
    if code == "pq":  # with fewer rows than lists * sample_rate, Lance would build fewer lists
        rate = max(2, min(_TRAINING, total // lists))
        options = {"num_sub_vectors": size, "sample_rate": rate, "max_iters": _ITERATIONS}
    table.create_index(
        "mu", _TYPES[code], metric="dot", replace=True, num_partitions=lists, **options
    )
    sample, estimates = _sample(table, dim), _Estimates(table)
    errors, sizes = measure_index(sample, total, estimates, lists, sizes, members=members)
    return Compression(code, size, errors), sizes


class _Estimates:
    """The cosines that the index estimates for chosen rows."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __call__(
        self, query: np.ndarray, ids: np.ndarray, probes: int
    ) -> tuple[np.ndarray, np.ndarray]:
        import pyarrow.compute as pc

        nearest = {"column": "mu", "q": query, "k": len(ids), "metric": "dot", "nprobes": probes}
        found = self._table.scanner(
            columns=["id", "_distance"],
            nearest=nearest,
            filter=pc.field("id").isin(ids.tolist()),
            prefilter=True,
        ).to_table()
        place = {name: i for i, name in enumerate(ids.tolist())}
        visited = np.array([place[name] for name in found["id"].to_pylist()], np.int64)
        return visited, 1 - found["_distance"].to_numpy().astype(np.float64)


def _sample(table: Any, dim: int) -> Rows:
    """Rows among which near pairs are searched."""
    places = sample_places(table.count_rows(), dim)
    part = table.take(places.tolist(), columns=["id", "mu"])
    flat = part["mu"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    mu = np.ascontiguousarray(flat.reshape(len(places), dim))
    ids = object_array(part["id"].to_pylist())
    return Rows(ids, mu, np.zeros(len(ids), np.float32))
