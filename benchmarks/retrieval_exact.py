"""Three engines in exact mode compared with a brute-force scan: the same sets, order and cosines.

``python -m benchmarks.retrieval_exact [--rows 100000] [--queries 1000] [--out results/benchmarks]`` writes
retrieval_exact.json.

Galleries in R^16 and R^128 with heavy-tailed kappa and a tenth of the directions stored twice. Queries have masses from
0.5 to 0.999; among them are stored directions as points (kappa = inf: the set of their duplicates), confident queries
far from all items (empty sets), and queries with mass 1 (sets of all items).
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

import aureole as au
from aureole.caps import CredibleIndex, cap_cosine
from aureole.engines._schema import exact_cosines, stored_direction
from aureole.records import Record, write_record
from benchmarks.engines import clustered, postgres_server

MASSES = (0.5, 0.8, 0.9, 0.95, 0.99, 0.999)
ENGINES = ("faiss", "lance", "postgres")


def gallery_of(n: int, dim: int) -> au.VonMisesFisher:
    """A gallery whose last tenth repeats the first tenth's directions."""
    found = clustered(n, dim, clusters=max(2, n // 500), noise=1.0, seed=1)
    twins = n // 10
    found.mu[n - twins :] = found.mu[:twins]
    return found


def queries_of(gallery: au.VonMisesFisher, n: int) -> list[tuple[float, au.VonMisesFisher]]:
    """(Mass, queries) by mass: a third of stored directions, a third near the clusters, the rest uniform."""
    dim, rows = gallery.dim, len(gallery.kappa)
    third = n // 3
    near = clustered(third, dim, clusters=max(2, rows // 500), noise=1.0, seed=2)
    anywhere = torch.nn.functional.normalize(
        torch.randn(n - 2 * third, dim, generator=torch.Generator().manual_seed(3)), dim=-1
    )
    rng = torch.Generator().manual_seed(4)
    stored = gallery.mu[torch.randint(rows, (third,), generator=rng)]
    mu = torch.cat([stored, near.mu, anywhere])
    kappa = 2 * dim * torch.exp(1.2 * torch.randn(n, generator=rng))
    kappa[: third // 4] = torch.inf
    kappa[-(n // 20) :] *= 100
    mass = torch.randint(len(MASSES), (n,), generator=rng)
    found = [
        (level, au.VonMisesFisher(mu[mass == i], kappa[mass == i]))
        for i, level in enumerate(MASSES)
    ]
    return [*found, (1.0, au.VonMisesFisher(mu[third : third + 3], 5.0))]


def expected(
    gallery: np.ndarray, ids: np.ndarray, query: np.ndarray, threshold: float
) -> tuple[list[str], list[float]]:
    """(Ids, cosines) of the cap by a scan of all rows."""
    cosine = exact_cosines(query, gallery)
    inside = np.flatnonzero(cosine >= threshold)
    order = inside[np.lexsort((ids[inside], -cosine[inside]))]
    return ids[order].tolist(), cosine[order].tolist()


def compare(rows: int, dim: int, n_queries: int, engines: Sequence[str]) -> dict[str, dict]:
    """Per engine: queries, results, empty sets, sets of all items, disagreements (0 is exact), seconds per query."""
    gallery = gallery_of(rows, dim)
    ids = np.array([f"item {i}" for i in range(rows)])
    stored = stored_direction(gallery.mu)
    found: dict[str, dict] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        places = {name: str(folder / f"gallery.{name}") for name in ("faiss", "lance")}
        if "postgres" in engines:
            places["postgres"] = stack.enter_context(postgres_server()).get_uri() + "#exact"
        indexes = {e: CredibleIndex.create(places[e], gallery, ids.tolist()) for e in engines}
        for index in indexes.values():
            stack.callback(index.close)
        for engine in engines:
            keys = (
                "queries",
                "results",
                "empty",
                "everything",
                "twins",
                "disagreements",
                "seconds",
            )
            found[engine] = dict.fromkeys(keys, 0)
        for mass, queries in queries_of(gallery, n_queries):
            for start in range(0, len(queries.kappa), 16):
                part = slice(start, start + 16)
                batch = au.VonMisesFisher(queries.mu[part], queries.kappa[part])
                thresholds = cap_cosine(batch, mass).tolist()
                directions = stored_direction(batch.mu)
                truth = [
                    expected(stored, ids, mu, t)
                    for mu, t in zip(directions, thresholds, strict=True)
                ]
                for engine, index in indexes.items():
                    begin = time.perf_counter()
                    hits = index.search(batch, mass)
                    assert isinstance(hits, list)
                    tally = found[engine]
                    tally["seconds"] += time.perf_counter() - begin
                    for one, (names, cosines) in zip(hits, truth, strict=True):
                        tally["queries"] += 1
                        tally["results"] += len(names)
                        tally["empty"] += not names
                        tally["everything"] += len(names) == rows
                        tally["twins"] += any(a == b for a, b in pairwise(cosines))
                        right = one.ids == names and one.cosine.tolist() == cosines
                        tally["disagreements"] += not right
    for tally in found.values():
        tally["seconds a query"] = tally.pop("seconds") / tally["queries"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    options = parser.parse_args()
    metrics = {}
    for dim in (16, 128):
        metrics[f"D = {dim}"] = compare(options.rows, dim, options.queries, options.engines)
        for engine, tally in metrics[f"D = {dim}"].items():
            print(f"D = {dim}, {engine}: {tally}", flush=True)
    settings = {"rows": options.rows, "queries": options.queries, "masses": [*MASSES, 1.0]}
    command = (
        f"python -m benchmarks.retrieval_exact --rows {options.rows} --queries {options.queries}"
    )
    record = Record("retrieval-exact", metrics, command, 1, settings)
    write_record(record, options.out / "retrieval_exact.json")


if __name__ == "__main__":
    main()
