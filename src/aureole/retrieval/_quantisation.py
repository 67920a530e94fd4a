"""How far the cosines of a compressed index can be off, measured when it is built, and searches that allow for it.

The error is the 0.999 quantile of (exact cosine - estimate) over pairs of near rows of the gallery, in bands of the
exact cosine: about one member in a thousand, and only at the edge of a cap, is estimated so low that it is lost. The
lists of an index lose members, too, if a search visits too few. Unless the number of probes is given, it is the
smallest that reaches 99.5 % of the same pairs, doubling from the default.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aureole.retrieval._caps import exact_cosines
from aureole.retrieval._schema import Rows
from aureole.retrieval._store import probes_of

SAMPLE_ROWS = 2**16  # rows of the gallery among which near pairs are searched
_QUANTILE = 0.999
_BANDS = (-1.0, 0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)  # where bands of cosines start
_QUERIES, _PAIRS = 128, 48  # pairs per query
_PROBING_QUERIES = 32  # that decide the number of probes
_LARGEST_CAP = 1000  # pairs are those of caps with up to this many members
_REACHED = 0.995  # share of pairs whose lists are probed

Estimate = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def sample_places(count: int) -> np.ndarray:
    """The positions, in ascending order, of the rows among which pairs are searched; the same in each run."""
    if count <= SAMPLE_ROWS:
        return np.arange(count)
    drawn = np.random.default_rng(0).integers(0, count, SAMPLE_ROWS)
    return np.unique(drawn)


@dataclass(frozen=True)
class NearPairs:
    """Queries, and for each of them the positions of near rows in a sample and their exact cosines."""

    queries: np.ndarray
    places: list[np.ndarray]
    cosines: list[np.ndarray]

    @classmethod
    def of(cls, mu: np.ndarray, total: int) -> "NearPairs":
        """Pairs of a sample of the ``total`` rows of a gallery: the members of caps with up to 1,000 members."""
        rng = np.random.default_rng(1)
        chosen = rng.choice(len(mu), min(_QUERIES, len(mu)), replace=False)
        largest = min(len(mu), max(_PAIRS, math.ceil(_LARGEST_CAP * len(mu) / max(total, 1))))
        # the nearest rows, and then fewer and fewer: small and large caps count about the same
        ranks = np.unique(np.geomspace(1, largest, 2 * _PAIRS).astype(np.int64) - 1)
        places, cosines = [], []
        for query in chosen:
            products = mu @ mu[query]
            nearest = np.argpartition(-products, largest - 1)[:largest]
            near = nearest[np.argsort(-products[nearest], kind="stable")][ranks]
            places.append(near)
            cosines.append(exact_cosines(mu[query], mu[near]))
        return cls(mu[chosen], places, cosines)


def measure_index(
    sample: Rows, total: int, estimate: Estimate, lists: int, sizes: dict[str, int]
) -> tuple[tuple[tuple[float, float], ...], dict[str, int]]:
    """(Errors, sizes with the number of probes) of a compressed index of the ``total`` rows of a gallery.

    ``estimate(mu, ids, probes)`` returns those of the rows that a search of so many lists visits, as positions in
    ``ids``, and their estimated cosines. The errors are those of a ``Compression``.
    """
    pairs = NearPairs.of(sample.mu, total)

    def visit(probes: int, queries: int) -> tuple[np.ndarray, np.ndarray, float]:
        """(Cosines, their errors, share of the pairs of the first queries that were visited)."""
        exact, estimated, every = [np.zeros(0)], [np.zeros(0)], 0
        for query in range(min(queries, len(pairs.queries))):
            places = pairs.places[query]
            visited, scores = estimate(pairs.queries[query], sample.ids[places], probes)
            exact.append(pairs.cosines[query][visited])
            estimated.append(scores)
            every += len(places)
        cosines = np.concatenate(exact)
        return cosines, cosines - np.concatenate(estimated), len(cosines) / max(every, 1)

    probes = probes_of({}, lists)
    while probes < lists and visit(probes, _PROBING_QUERIES)[-1] < _REACHED:
        probes = min(2 * probes, lists)
    cosines, errors, _ = visit(probes, _QUERIES)
    return error_bands(cosines, errors), {"probes": probes} | sizes


def error_bands(cosines: np.ndarray, errors: np.ndarray) -> tuple[tuple[float, float], ...]:
    """(Start of a band of cosines, 0.999 quantile of the errors in it); a band without pairs has the largest of all.

    Examples
    --------
    >>> error_bands(np.array([0.1, 0.97, 0.98]), np.array([-0.01, 0.1, 0.2]))[::8]
    ((-1.0, 0.2), (0.95, 0.2))
    """
    band = np.searchsorted(_BANDS, cosines, side="right") - 1
    largest = max(0.0, float(errors.max(initial=0.0)))
    bands = []
    for number, start in enumerate(_BANDS):
        own = errors[band == number]
        error = float(np.quantile(own, _QUANTILE, method="higher")) if len(own) else largest
        bands.append((start, min(max(0.0, error), 2.0)))
    return tuple(bands)


def nearest_rows(rows: Rows, query: np.ndarray, k: int) -> Rows:
    """The k rows with the highest exact cosines to a query."""
    if len(rows) <= k:
        return rows
    best = np.argsort(-exact_cosines(query, rows.mu), kind="stable")[:k]
    payload = {name: column[best] for name, column in rows.payload.items()}
    return Rows(rows.ids[best], rows.mu[best], rows.kappa[best], payload)


def nearest_exactly(
    query: np.ndarray,
    k: int,
    near: Callable[[np.ndarray, int], Rows],
    within: Callable[[np.ndarray, float], Rows],
) -> Rows:
    """The k rows nearest to a query, from an index that ranks by estimates.

    ``near`` returns the k rows with the highest estimates. The last of their exact cosines bounds the one of the k-th
    nearest row, so ``within``, which lowers this bound by the error, returns all rows that may be nearer.
    """
    rows = near(query, k)
    if len(rows) < k or not k:
        return rows
    bound = float(exact_cosines(query, rows.mu).min())
    return nearest_rows(within(query, bound), query, k)
