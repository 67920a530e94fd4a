"""How far the cosines of a compressed index can be off, measured when it is built, and searches that allow for it.

The error is the 0.999 quantile of (exact cosine - estimate) over pairs of near rows of the gallery, in bands of the
exact cosine: about one member in a thousand, and only at the edge of a cap, is estimated so low that it is lost. The
lists of an index lose members, too, if a search visits too few. Unless the number of probes is given, it is, within an
eighth, the smallest that reaches 99 % of the members of caps with about 1, 10, 100 and 1,000 members each, with a
margin of one standard error over the queries.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from aureole.retrieval._caps import exact_cosines
from aureole.retrieval._schema import Rows

_SAMPLE_FLOATS = 2**25  # of the rows among which near pairs are searched
_MOST_SAMPLED, _FEWEST_SAMPLED = 2**19, 2**16  # such rows
_QUANTILE = 0.999
_BANDS = (-1.0, 0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95)  # where bands of cosines start
_QUERIES, _PAIRS = 128, 48  # pairs per query
LARGEST_CAP = 1000  # pairs are those of caps with up to this many members
_CAPS = (0.001, 0.01, 0.1, 1.0)  # sizes of caps, relative to the largest
_REACHED = 0.99  # share of the members of caps of each size whose lists are probed
_FEWEST_PROBES = 256  # the first number that is tried is one list in so many

Estimate = Callable[[np.ndarray, np.ndarray, int], tuple[np.ndarray, np.ndarray]]


def sample_size(dim: int) -> int:
    """The largest number of rows among which pairs are searched."""
    return max(_FEWEST_SAMPLED, min(_MOST_SAMPLED, _SAMPLE_FLOATS // dim))


def sample_places(count: int, dim: int) -> np.ndarray:
    """The positions, in ascending order, of the rows among which pairs are searched; the same in each run.

    They take 128 MiB at most (256 KiB per dimension for D above 512). The fewer they are, the farther apart are their
    nearest pairs, and the more cautious is the number of probes.
    """
    most = sample_size(dim)
    if count <= most:
        return np.arange(count)
    drawn = np.random.default_rng(0).integers(0, count, most)
    return np.unique(drawn)


@dataclass(frozen=True)
class NearPairs:
    """Queries, and for each of them the positions of near rows in a sample and their exact cosines.

    ``ranks`` are those of the rows among all near rows of a query, which is the first of them itself.
    """

    queries: np.ndarray
    places: list[np.ndarray]
    cosines: list[np.ndarray]
    ranks: np.ndarray

    @classmethod
    def of(cls, mu: np.ndarray, total: int, members: int = LARGEST_CAP) -> "NearPairs":
        """Pairs of a sample of the ``total`` rows of a gallery: those of caps with up to ``members`` members."""
        rng = np.random.default_rng(1)
        chosen = rng.choice(len(mu), min(_QUERIES, len(mu)), replace=False)
        largest = min(len(mu), max(_PAIRS, math.ceil(members * len(mu) / max(total, 1))))
        # the nearest rows, and then fewer and fewer: small and large caps count about the same
        ranks = np.unique(np.geomspace(1, largest, 2 * _PAIRS).astype(np.int64) - 1)
        places, cosines = [], []
        for query in chosen:
            products = mu @ mu[query]
            nearest = np.argpartition(-products, largest - 1)[:largest]
            near = nearest[np.argsort(-products[nearest], kind="stable")][ranks]
            places.append(near)
            cosines.append(exact_cosines(mu[query], mu[near]))
        return cls(mu[chosen], places, cosines, ranks)

    def lowest_share(self, reached: np.ndarray) -> float:
        """The share of members that were reached [queries, ranks], for the size of caps for which it is lowest.

        It is the mean over the queries less its standard error. A rank stands for those between the one before and
        itself.
        """
        if len(self.ranks) < 2 or not len(reached):
            return float(reached.mean()) if reached.size else 1.0
        weights, largest = np.diff(self.ranks), self.ranks[-1]
        shares = []
        for size in _CAPS:
            inside = self.ranks[1:] <= max(size * largest, 1)
            each = np.average(reached[:, 1:][:, inside], axis=1, weights=weights[inside])
            shares.append(each.mean() - each.std() / len(each) ** 0.5)
        return float(min(shares))


def measure_index(
    sample: Rows,
    total: int,
    estimate: Estimate,
    lists: int,
    sizes: dict[str, int],
    *,
    members: int = LARGEST_CAP,
) -> tuple[tuple[tuple[float, float], ...], dict[str, int]]:
    """(Errors, sizes with the number of probes) of a compressed index of the ``total`` rows of a gallery.

    ``estimate(mu, ids, probes)`` returns those of the rows that a search of so many lists visits, as positions in
    ``ids``, and their estimated cosines. The errors are those of a ``Compression``. ``members`` is the size of the
    largest caps that the index is built for.
    """
    pairs = NearPairs.of(sample.mu, total, members)

    def visit(probes: int) -> tuple[np.ndarray, np.ndarray, float]:
        """(Cosines, their errors, a lower bound of the share of the members of caps that were visited)."""
        exact, estimated = [np.zeros(0)], [np.zeros(0)]
        reached = np.zeros((len(pairs.queries), len(pairs.ranks)), bool)
        for query in range(len(reached)):
            visited, scores = estimate(
                pairs.queries[query], sample.ids[pairs.places[query]], probes
            )
            exact.append(pairs.cosines[query][visited])
            estimated.append(scores)
            reached[query, visited] = True
        cosines = np.concatenate(exact)
        return cosines, cosines - np.concatenate(estimated), pairs.lowest_share(reached)

    probes = sizes.get("probes")
    if probes is None:
        probes = _enough_probes(lists, lambda count: visit(count)[-1] >= _REACHED)
    cosines, errors, _ = visit(min(probes, lists))
    return error_bands(cosines, errors), {"probes": probes} | sizes


def _enough_probes(lists: int, enough: Callable[[int], bool]) -> int:
    """A number of probes that is enough: the first of doubling ones, lowered in steps of an eighth of it.

    Examples
    --------
    >>> _enough_probes(4000, lambda probes: probes >= 41), _enough_probes(8, lambda probes: True)
    (45, 1)
    """
    probes = max(1, lists // _FEWEST_PROBES)
    while probes < lists and not enough(probes):
        probes = min(2 * probes, lists)
    for step in (probes // 4, probes // 8):
        if step and enough(probes - step):
            probes -= step
    return probes


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
