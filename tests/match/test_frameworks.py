"""MatchFilter and its adapters on hostile and unusual input: one-line errors, and nothing of yours is changed."""

import asyncio
import subprocess
import sys
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import AureoleWarning, InvalidInputError
from aureole.match import MatchFilter

DIM, ITEMS = 16, 300
NAMES = [f"item {row}" for row in range(ITEMS)]


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def fitted(ids=None, **options):
    """(Calibrator, gallery, new queries, the row that matches each of them)."""
    rng = np.random.default_rng(0)
    gallery = unit(rng.standard_normal((ITEMS, DIM)) + 0.7 * np.eye(DIM)[0])
    right = rng.integers(ITEMS, size=460)
    noise = rng.uniform(0.02, 0.2, (460, 1)) * rng.standard_normal((460, DIM))
    queries = gallery[right] + noise
    matches = [[row if ids is None else ids[row]] for row in right[:400]]
    calibrator = au.MatchCalibrator(**options).fit(queries[:400], gallery, matches, ids=ids)
    return calibrator, gallery, queries[400:], right[400:]


@pytest.fixture(scope="module")
def rows():
    return fitted()


@pytest.fixture(scope="module")
def named():
    return fitted(NAMES)


@pytest.fixture(scope="module")
def mapped():
    return fitted(NAMES, query_map=True)


def exact(gallery, names=None):
    """A search of the exact cosines."""

    def search(vector, k):
        cosines = gallery @ vector
        nearest = np.argsort(-cosines)[:k]
        return cosines[nearest], nearest if names is None else [names[row] for row in nearest]

    return search


def message(error):
    text = str(error.value)
    assert "\n" not in text
    assert len(text) < 260
    return text


@pytest.mark.parametrize(
    ("scores", "convert"),
    [
        ("cosine_distance", lambda c: 1 - c),
        ("squared_l2", lambda c: 2 - 2 * c),
        (lambda s: 2 * s - 1, lambda c: (1 + c) / 2),
    ],
)
def test_distances_give_the_same_matches(rows, scores, convert):
    calibrator, gallery, queries, _ = rows
    plain = MatchFilter(calibrator, exact(gallery), threshold=0.3)

    def search(vector, k):
        cosines, ids = exact(gallery)(vector, k)
        return convert(cosines), ids

    other = MatchFilter(calibrator, search, threshold=0.3, scores=scores)
    for query in queries:
        a, b = plain(query), other(query)
        assert a.ids == b.ids
        np.testing.assert_allclose(a.cosines, b.cosines, atol=1e-12)
        assert a.p_value == b.p_value


def test_distances_that_are_passed_as_cosines_are_an_error(rows):
    calibrator, gallery, queries, _ = rows
    matches = MatchFilter(calibrator, threshold=0.3)
    cosines, ids = exact(gallery)(unit(queries[0]), 50)
    near = 1 - cosines
    with pytest.raises(InvalidInputError) as error:
        matches.select(near[near <= 1], ids[near <= 1])
    assert "returns distances" in message(error)
    with pytest.raises(InvalidInputError) as error:
        matches.select(2 * near + 0.5, ids)
    assert "between -1 and 1" in message(error)


@pytest.mark.parametrize(
    "scores",
    [[np.nan] * 20, [[0.5] * 20], np.full(20, np.inf), 0.5, [1e300] * 20],
    ids=["nan", "matrix", "inf", "scalar", "huge"],
)
def test_hostile_scores(rows, scores):
    with pytest.raises(InvalidInputError) as error:
        MatchFilter(rows[0], threshold=0.3).select(scores, list(range(20)))
    message(error)


@pytest.mark.parametrize(
    "vector",
    [
        np.zeros(DIM),
        np.full(DIM, np.nan),
        np.ones(DIM - 1),
        np.ones((2, DIM)),
        ["a"] * DIM,
        1.0,
        [],
    ],
    ids=["zero", "nan", "short", "matrix", "text", "scalar", "empty"],
)
def test_hostile_queries(rows, vector):
    matches = MatchFilter(rows[0], exact(rows[1]), threshold=0.3)
    with pytest.raises(InvalidInputError) as error:
        matches(vector)
    message(error)


def test_the_vector_of_a_query_is_that_of_the_calibrator(rows):
    calibrator, _, queries, _ = rows
    matches = MatchFilter(calibrator, threshold=0.3)
    for query in (queries[0], queries[0].astype("f4"), queries[0].tolist(), [3] * DIM):
        expected = calibrator.map_queries([query])[0]
        found = matches.query_vector(query)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert matches.query_vector(torch.tensor(queries[0])) == pytest.approx(
        calibrator.map_queries(queries[:1])[0]
    )


def test_as_many_ids_as_scores(rows):
    with pytest.raises(InvalidInputError) as error:
        MatchFilter(rows[0], threshold=0.3).select(np.linspace(0.9, 0.1, 20), list(range(19)))
    assert "same shape" in message(error)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"threshold": 1.5}, "threshold must"),
        ({"threshold": 0.5, "k": 5}, "k must be at least 10"),
        ({"threshold": 0.5, "limit": 0}, "limit must be at least 1"),
        ({"threshold": 0.5, "abstain": -1.0}, "abstain must"),
        ({"threshold": 0.5, "scores": "euclid" * 99}, "scores must be one of cosine,"),
    ],
)
def test_wrong_options(rows, options, words):
    with pytest.raises(InvalidInputError) as error:
        MatchFilter(rows[0], **options)
    assert words in message(error)


def test_a_filter_agrees_with_the_calibrator(named):
    """MatchFilter has a short path for one query; its numbers are those of the calibrator."""
    calibrator, gallery, queries, _ = named
    matches = MatchFilter(calibrator, exact(gallery, NAMES), threshold=0.0, limit=100)
    for query in queries:
        cosines, ids = exact(gallery, NAMES)(matches.query_vector(query), 100)
        found = matches(query)
        names = np.array(ids, dtype=object)
        expected = dict(zip(ids, calibrator.probability(cosines, names), strict=True))
        assert matches.level(cosines) == pytest.approx(float(calibrator.level(cosines)), abs=1e-12)
        assert found.probabilities == pytest.approx([expected[i] for i in found.ids], abs=1e-12)
        assert found.p_value == float(calibrator.no_match_p_value(cosines))


def test_few_results_need_a_level(rows):
    calibrator, gallery, queries, _ = rows
    matches = MatchFilter(calibrator, exact(gallery), threshold=0.3)
    cosines, ids = exact(gallery)(matches.query_vector(queries[0]), 100)
    with pytest.raises(InvalidInputError) as error:
        matches.select(cosines[:4], ids[:4])
    assert "needs its 10 highest cosines, but got 4" in message(error)
    few = matches.select(cosines[:4], ids[:4], level=matches.level(cosines))
    assert few.ids == [row for row in matches.select(cosines, ids).ids if row in ids[:4]]


def test_no_results_are_no_matches(rows):
    empty = MatchFilter(rows[0], threshold=0.3, abstain=0.5).select([], [])
    assert (empty.ids, len(empty), empty.p_value, empty.abstained) == ([], 0, 1.0, True)


def test_a_filter_without_a_search_function(rows):
    with pytest.raises(InvalidInputError) as error:
        MatchFilter(rows[0], threshold=0.3)(rows[2][0])
    assert "call select" in message(error)


@pytest.mark.parametrize("unknown", [ITEMS, -1, 2**70, "17", None, 1.5])
def test_an_item_that_the_calibrator_does_not_have(rows, unknown):
    with pytest.raises(InvalidInputError) as error:
        MatchFilter(rows[0], threshold=0.3).select(np.linspace(0.9, 0.1, 20), [unknown, *range(19)])
    assert "append" in message(error)


def test_an_appended_item_is_found():
    calibrator, gallery, queries, _ = fitted(NAMES)
    gallery, names = np.concatenate([gallery, unit(queries[:1])]), [*NAMES, "new"]
    matches = MatchFilter(calibrator, exact(gallery, names), threshold=0.3)
    with pytest.raises(InvalidInputError, match="item 'new' is not in the gallery"):
        matches(queries[0])
    calibrator.append(queries[:1], ["new"])
    assert "new" in matches(queries[0]).ids


def test_drift_is_reported_once(rows):
    calibrator, gallery, queries, _ = rows
    matches = MatchFilter(calibrator, exact(gallery), threshold=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for query in np.concatenate([queries, queries]):
            matches(query)
    strangers = MatchFilter(calibrator, exact(gallery), threshold=0.3)
    rng = np.random.default_rng(3)
    far = rng.standard_normal((120, DIM)) - 3 * np.eye(DIM)[0]
    with pytest.warns(AureoleWarning, match="highest cosines of these queries") as caught:
        _ = [strangers(query) for query in far]
    assert len(caught) == 1
    assert "\n" not in str(caught[0].message)


def test_a_range_has_all_matches(rows):
    calibrator, gallery, queries, _ = rows
    matches = MatchFilter(calibrator, exact(gallery), threshold=0.05, k=ITEMS, limit=ITEMS)
    sizes = []

    def range_search(vector, cosine):
        found = np.flatnonzero(gallery @ vector >= cosine)
        sizes.append(len(found))
        return (gallery @ vector)[found], found

    for query in queries:
        assert set(matches.search_range(query, range_search).ids) == set(matches(query).ids)
    assert len(set(sizes)) > 2
    assert max(sizes) < ITEMS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "installed", "name"),
    [
        ("langchain_core", "langchain-core", "LangChainMatchRetriever"),
        ("llama_index", "llama-index-core", "LlamaIndexMatchRetriever"),
    ],
)
def test_a_framework_is_imported_only_when_used(package, installed, name):
    program = (
        f"import sys, aureole, aureole.match; assert {package!r} not in sys.modules\n"
        f"sys.modules[{package!r}] = None\nfrom aureole.match import {name}"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("aureole.errors.MissingPackageError: ")
    assert f"pip install {installed}" in last


@pytest.fixture(autouse=True)
def _no_tracing(monkeypatch):
    for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
        monkeypatch.setenv(name, "false")


def known_embeddings(queries, gallery):
    embeddings = pytest.importorskip("langchain_core.embeddings")

    class Known(embeddings.Embeddings):
        def embed_documents(self, texts):
            return [gallery[NAMES.index(text)].tolist() for text in texts]

        def embed_query(self, text):
            return queries[int(text)].tolist()

    return Known()


def langchain_retriever(parts, *, threshold=0.3, **options):
    from langchain_core.vectorstores import InMemoryVectorStore

    from aureole.match import LangChainMatchRetriever

    calibrator, gallery, queries, _ = parts
    store = InMemoryVectorStore(known_embeddings(queries, gallery))
    shops = [{"shop": row % 2} for row in range(ITEMS)]
    store.add_texts(NAMES, metadatas=shops, ids=NAMES)
    matches = MatchFilter(calibrator, threshold=threshold)
    return LangChainMatchRetriever(**{"store": store, "matches": matches} | options)


def test_langchain_documents_have_probabilities_and_the_store_stays(named):
    calibrator, gallery, queries, _ = named
    retriever = langchain_retriever(named)
    plain = MatchFilter(calibrator, exact(gallery, NAMES), threshold=0.3)
    numbers = [str(i) for i in range(len(queries))]
    together = asyncio.run(retriever.abatch(numbers))
    for number, documents in zip(numbers, together, strict=True):
        expected = plain(queries[int(number)])
        assert [d.id for d in retriever.invoke(number)] == expected.ids
        assert [d.id for d in documents] == expected.ids
        p = [d.metadata["match_probability"] for d in documents]
        np.testing.assert_allclose(p, expected.probabilities, atol=1e-9)
        assert all(type(value) is float for value in p)
        cosines = [d.metadata["match_cosine"] for d in documents]
        np.testing.assert_allclose(cosines, expected.cosines, atol=1e-9)
    kept = retriever.store.store.values()
    assert all(set(entry["metadata"]) == {"shop"} for entry in kept)


def test_langchain_a_filter_takes_the_level_of_all_items(named):
    calibrator, gallery, queries, _ = named
    only = {"filter": lambda document: document.metadata["shop"] == 1}
    retriever = langchain_retriever(named, search_kwargs=only)
    plain = MatchFilter(calibrator, exact(gallery, NAMES), threshold=0.3, limit=ITEMS)
    for i, query in enumerate(queries):
        expected = [name for name in plain(query).ids if int(name.split()[1]) % 2]
        assert [d.id for d in retriever.invoke(str(i))] == expected[:10]


def test_langchain_a_map_of_the_queries_is_applied(mapped):
    calibrator, gallery, queries, _ = mapped
    retriever = langchain_retriever(mapped)
    plain = MatchFilter(calibrator, exact(gallery, NAMES), threshold=0.3)
    for i, query in enumerate(queries[:20]):
        assert [d.id for d in retriever.invoke(str(i))] == plain(query).ids


def test_langchain_other_stores(named):
    """A function, and the method of Chroma, whose relevance scores are distances."""
    calibrator = named[0]
    whole = langchain_retriever(named)
    search = whole.store.similarity_search_with_score_by_vector

    class Chroma:
        embeddings = whole.store.embeddings

        def similarity_search_by_vector_with_relevance_scores(self, embedding, k):
            return [(document, 1 - cosine) for document, cosine in search(embedding, k)]

    distances = MatchFilter(calibrator, threshold=0.3, scores="cosine_distance")
    chroma = langchain_retriever(named, store=Chroma(), matches=distances)
    function = langchain_retriever(named, store=search, embeddings=whole.store.embeddings)
    for number in map(str, range(20)):
        expected = [d.id for d in whole.invoke(number)]
        assert [d.id for d in chroma.invoke(number)] == expected
        assert [d.id for d in function.invoke(number)] == expected


def test_langchain_what_can_go_wrong_is_one_line(named, rows):
    from langchain_core.documents import Document

    good = langchain_retriever(named)
    embeddings = good.store.embeddings
    cases = {
        "has no search by vector": {"store": object(), "embeddings": embeddings},
        "store has no embeddings": {"store": lambda vector, k: []},
        "without the key 'sku'": {"id_key": "sku"},
        "'item ": {"matches": MatchFilter(rows[0], threshold=0.3)},  # ids of another calibrator
        "different ids": {"id_key": "shop"},
        "without an id": {
            "store": lambda vector, k: [(Document("text"), 0.5)] * k,
            "embeddings": embeddings,
        },
    }
    for words, options in cases.items():
        with pytest.raises(InvalidInputError) as error:
            langchain_retriever(named, **options).invoke("0")
        assert words in message(error)


def test_langchain_a_store_without_results(named):
    good = langchain_retriever(named)
    nothing = langchain_retriever(
        named, store=lambda vector, k: [], embeddings=good.store.embeddings
    )
    assert nothing.invoke("0") == []


@pytest.fixture(scope="module")
def index(named):
    core = pytest.importorskip("llama_index.core")
    from llama_index.core.schema import TextNode

    nodes = [
        TextNode(id_=name, text=name, embedding=vector.tolist(), metadata={"shop": row % 2})
        for row, (name, vector) in enumerate(zip(NAMES, named[1], strict=True))
    ]
    return core.VectorStoreIndex(nodes, embed_model=core.MockEmbedding(embed_dim=DIM))


def bundle(query):
    from llama_index.core.schema import QueryBundle

    return QueryBundle("a text", embedding=query.tolist())


def test_llamaindex_scores_are_probabilities(named, index):
    from aureole.match import LlamaIndexMatchRetriever

    calibrator, gallery, queries, _ = named
    matches = MatchFilter(calibrator, exact(gallery, NAMES), threshold=0.3)
    retriever = LlamaIndexMatchRetriever(index, matches)
    for query in queries[:20]:
        expected = matches(query)
        for found in (
            retriever.retrieve(bundle(query)),
            asyncio.run(retriever.aretrieve(bundle(query))),
        ):
            assert [node.node_id for node in found] == expected.ids
            scores = [node.score for node in found]
            np.testing.assert_allclose(scores, expected.probabilities, atol=1e-6)


def test_llamaindex_a_text_is_embedded_by_the_model_of_the_index(named, index):
    from aureole.match import LlamaIndexMatchRetriever

    calibrator, gallery, _, _ = named
    matches = MatchFilter(calibrator, exact(gallery, NAMES), threshold=0.0)
    retriever = LlamaIndexMatchRetriever(index, matches)
    expected = matches(np.full(DIM, 0.5)).ids  # what the mock returns for any text
    assert [node.node_id for node in retriever.retrieve("a text")] == expected
    again = asyncio.run(retriever.aretrieve("a text"))
    assert [node.node_id for node in again] == expected


def test_llamaindex_filters_take_the_level_of_all_items(named, index):
    from llama_index.core.vector_stores import MetadataFilter, MetadataFilters

    from aureole.match import LlamaIndexMatchRetriever

    calibrator, gallery, queries, _ = named
    only = MetadataFilters(filters=[MetadataFilter(key="shop", value=1)])
    matches = MatchFilter(calibrator, exact(gallery, NAMES), threshold=0.3)
    retriever = LlamaIndexMatchRetriever(index, matches, filters=only)
    for query in queries[:20]:
        expected = [name for name in matches(query).ids if int(name.split()[1]) % 2]
        found = retriever.retrieve(bundle(query))
        assert [node.node_id for node in found] == expected
        again = asyncio.run(retriever.aretrieve(bundle(query)))
        assert [node.node_id for node in again] == expected


def test_llamaindex_what_can_go_wrong_is_one_line(named, index, monkeypatch):
    from llama_index.core.schema import NodeWithScore, TextNode

    from aureole.match import LlamaIndexMatchRetriever

    matches = MatchFilter(named[0], threshold=0.3)
    few = index.as_retriever(similarity_top_k=2).retrieve(bundle(named[2][0]))
    cases = {
        "but got 2": (few, None),
        "without a score": ([NodeWithScore(node=TextNode(id_="item 1"))], None),
        "without the key 'sku'": (few, "sku"),
    }
    for words, (nodes, key) in cases.items():
        retriever = LlamaIndexMatchRetriever(index, matches, id_key=key)
        monkeypatch.setattr(retriever, "_filtered", SimpleNamespace(retrieve=lambda _, n=nodes: n))
        with pytest.raises(InvalidInputError) as error:
            retriever.retrieve(bundle(named[2][0]))
        assert words in message(error)
