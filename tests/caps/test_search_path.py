"""What one search costs in calls of this library, and threads that share an index."""

import sys
import threading

import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex, SearchOptions
from aureole.engines import Origin
from aureole.errors import InvalidInputError
from tests.engines.conftest import assert_exact, brute_force, names, posteriors


def calls_of(work):
    """The files of the functions of this library that are called, without those of the numerics of the sphere."""
    files = []

    def profile(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and "/src/aureole/" in path and "/sphere/" not in path:
            files.append(path)

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize("limit", [None, 5])
@pytest.mark.parametrize("kappa_pos", [None, 20.0])
def test_a_search_takes_few_calls_and_one_of_the_engine(tmp_path, limit, kappa_pos):
    pytest.importorskip("lance")
    gallery = posteriors(300, 8)
    with CredibleIndex.create(tmp_path / "gallery.lance", gallery, names(300)) as index:
        index.origin = Origin(kappa_pos)
        query, searches = au.VonMisesFisher(gallery.mu[0], 20.0), []
        index.search(query, 0.9, limit=limit)  # computes the table of caps
        near = index._store._near
        index._store._near = lambda *given: searches.append(given) or near(*given)
        files = calls_of(lambda: index.search(query, 0.9, limit=limit))
        assert len(searches) == 1
    assert len(files) <= (80 if kappa_pos is None else 100)
    assert len(set(files)) <= (12 if kappa_pos is None else 13)


def test_threads_share_an_index(place):
    gallery, ids = posteriors(400, 8), names(400)
    queries = [au.VonMisesFisher(gallery.mu[row], 20.0) for row in range(8)]
    expected = [brute_force(gallery, ids, query, 0.9) for query in queries]
    faults, start = [], threading.Barrier(16)
    with CredibleIndex.create(place(), gallery, ids, {"n": list(range(400))}) as index:

        def work(thread):
            far = au.VonMisesFisher(-gallery.mu[:1], 1e9)
            start.wait(timeout=60)
            try:
                for turn in range(6):
                    row = (thread + turn) % len(queries)
                    limit = (None, 7)[turn % 2]
                    hits = index.search(
                        queries[row], 0.9, limit=limit, filter={"n": (0, 399)}, columns=["n"]
                    )
                    assert_exact(hits, expected[row][:limit])
                    assert hits.payload["n"] == [int(name.split()[1]) for name in hits.ids]
                    if thread == 0:
                        index.append(far, [f"other {turn}"], {"n": [1000]})
                    elif thread == 1:
                        assert sum(len(part) for part, _, _ in index.scan()) >= 400
                    elif thread == 2 and turn == 2:
                        index.build("ivf", lists=4, probes=4)
                    elif thread == 3:
                        index.delete([f"other {turn}"])
            except Exception as error:
                faults.append(repr(error)[:500])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert faults == []


def test_queries_without_a_direction_are_refused_and_points_are_not():
    pytest.importorskip("faiss")
    gallery = posteriors(20, 4)
    with CredibleIndex.create("faiss://", gallery, names(20), {"n": list(range(20))}) as index:
        zero = au.VonMisesFisher(torch.zeros(4), torch.tensor(3.0), validate_args=False)
        with pytest.raises(InvalidInputError, match="direction"):
            index.search(zero)
        with pytest.raises(InvalidInputError, match="more than once"):
            index.search(au.VonMisesFisher(gallery.mu[0], 3.0), columns=["n", "n"])
        point = au.VonMisesFisher(gallery.mu[3], torch.tensor(torch.inf))
        assert index.search(point, 0.9).ids == ["row 3"]  # its cap is itself
        wider = index.search(point, 0.9, options=SearchOptions(kappa_pos=20.0))
        assert "row 3" in wider.ids
        assert len(wider) > 1
