"""Match probabilities in databases and frameworks: the examples of docs/databases.md agree with brute force."""

import re
import socket
from pathlib import Path

import numpy as np
import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "databases.md").read_text()
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
INTRO, *SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)
OVERVIEW, SETUP = BLOCK.findall(INTRO)
EXAMPLES = {text.partition("\n")[0]: BLOCK.findall(text) for text in SECTIONS}
DATABASES = {
    "FAISS": "faiss",
    "Qdrant": "qdrant_client",
    "Milvus": "milvus_lite",
    "LanceDB": "lancedb",
    "PostgreSQL with pgvector": "psycopg",
    "Chroma": "chromadb",
}
FRAMEWORKS = {
    "sentence-transformers": "sentence_transformers",
    "LangChain": "langchain_core",
    "LlamaIndex": "llama_index.core",
}


@pytest.fixture(scope="module")
def setup():
    """The names of the page's setup block."""
    names = {}
    exec(compile(SETUP, "databases.md", "exec"), names)
    return names


@pytest.fixture(scope="module")
def expected(setup):
    """The matches of each new query, by the exact cosines with all items; and those of shop 3."""
    everyone, of_shop = [], []
    for query in setup["new"]:
        unit = (query / np.linalg.norm(query)).astype(np.float32)
        cosines = (setup["gallery"] @ unit).astype(np.float64)
        level = np.sort(cosines)[-10:].mean()
        p = setup["calibrator"].probability(cosines, np.arange(1000), level=level)
        rows = [
            row for row in np.argsort(-p, kind="stable").tolist() if p[row] >= setup["threshold"]
        ]
        everyone.append(rows[:10])
        of_shop.append([row for row in rows if row % 5 == 3][:10])
    return {"answers": everyone, "in_range": everyone, "filtered": of_shop}


@pytest.fixture
def offline(monkeypatch):
    """No connection to another machine, and no telemetry."""
    connect = socket.socket.connect

    def local(self, address):
        host = address[0] if isinstance(address, tuple) else "localhost"
        assert host in ("127.0.0.1", "::1", "localhost"), f"a connection to {address}"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    monkeypatch.setenv("ANONYMIZED_TELEMETRY", "False")
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")


def run(name, names, expected):
    """Run the blocks of a section; return the names of the answers that it gave, which must be right."""
    seen = set()
    for block in EXAMPLES[name]:
        assert block.count("\n") <= 20
        for key in expected:
            names.pop(key, None)
        exec(compile(block, name, "exec"), names)
        for key in expected.keys() & names.keys():
            assert names[key] == expected[key], (name, key)
            seen.add(key)
    return seen


def check_range(names):
    """The example's range search returns what has this cosine, and nothing else."""
    vector = names["matches"].query_vector(names["new"][0])
    cosines = names["gallery"] @ vector
    scores, ids = names["range_search"](vector, 0.3)
    assert sorted(ids) == np.flatnonzero(cosines >= 0.3).tolist()
    to_cosine = {"cosine": lambda s: s, "cosine_distance": lambda s: 1 - s}
    found = to_cosine[names["matches"].scores](np.array(scores))
    np.testing.assert_allclose(found, cosines[list(ids)], atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the packages of the examples
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", DATABASES)
def test_a_database_gives_the_answers_of_brute_force(
    name, setup, expected, tmp_path, monkeypatch, request
):
    pytest.importorskip(DATABASES[name])
    monkeypatch.chdir(tmp_path)
    names = dict(setup)
    if name.startswith("PostgreSQL"):
        names["uri"] = request.getfixturevalue("server").get_uri()
    seen = run(name, names, expected)
    assert "answers" in seen
    assert ("filtered" in seen) == (name == "Qdrant")
    assert ("range_search" in names) == (name != "Chroma")
    if name != "Chroma":
        check_range(names)
    if name.startswith("PostgreSQL"):
        names["db"].close()


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_gives_the_answers_of_brute_force(name, setup, expected):
    pytest.importorskip(FRAMEWORKS[name])
    assert run(name, dict(setup), expected) == {"answers"}


def test_the_overview_is_code_that_runs(setup):
    def search(vector, k):
        cosines = setup["gallery"] @ vector
        rows = np.argsort(-cosines)[:k]
        return cosines[rows], rows

    names = setup | {"search": search, "query": setup["new"][0]}
    exec(compile(OVERVIEW, "databases.md", "exec"), names)
    assert names["answer"].ids == [setup["right"][800]]


def test_the_examples_answer_something(expected):
    """Sets are of different sizes, and some filtered ones are empty."""
    sizes = [len(rows) for rows in expected["answers"]]
    assert sum(sizes) > 50
    assert len(set(sizes)) > 1
    assert 0 < sum(map(bool, expected["filtered"])) < len(sizes)


def test_every_example_is_run():
    assert [
        name for name, blocks in EXAMPLES.items() if blocks and name not in DATABASES | FRAMEWORKS
    ] == []
    assert "is not run here" in PAGE.partition("## OpenSearch")[2]
