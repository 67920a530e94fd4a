"""Match probabilities in LlamaIndex. The only module that imports llama-index-core."""

import asyncio
from collections.abc import Sequence
from typing import Any

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.match._filter import MatchFilter, item_id, select_items

try:
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.schema import NodeWithScore, QueryBundle
except ImportError as error:
    raise MissingPackageError(
        "LlamaIndexMatchRetriever needs llama-index-core: pip install llama-index-core."
    ) from error


class LlamaIndexMatchRetriever(BaseRetriever):
    """A LlamaIndex retriever that returns the likely matches of an index, the most probable first.

    The score of a node is its match probability. What the scores of the index are depends on its vector store: the
    default one, Qdrant and PGVector return cosines; Chroma returns ``exp(-distance)``, so pass
    ``MatchFilter(scores=lambda score: 1 + np.log(score))`` for a collection with cosine distances.

    Parameters
    ----------
    index
        A ``VectorStoreIndex``, or another index whose ``as_retriever`` takes ``similarity_top_k`` and ``filters``.
    matches
        The calibrator, the threshold, and what the scores of the index are.
    embed_model
        Embeds the query (default: the model of the index).
    id_key
        Key of the metadata that holds the id of the calibrator's item (default: the id of the node).
    filters
        Metadata filters. With any, the level of the query comes from a second search without them.

    Examples
    --------
    >>> from llama_index.core import MockEmbedding, VectorStoreIndex
    >>> from llama_index.core.schema import QueryBundle, TextNode
    >>> from aureole.match import MatchCalibrator, MatchFilter
    >>> import numpy as np
    >>> vectors = np.random.default_rng(0).standard_normal((100, 16))
    >>> ids = [f"node {i}" for i in range(100)]
    >>> nodes = [TextNode(id_=i, text=i, embedding=v.tolist()) for i, v in zip(ids, vectors)]
    >>> index = VectorStoreIndex(nodes, embed_model=MockEmbedding(embed_dim=16))
    >>> calibrator = MatchCalibrator().fit(vectors, vectors, [[i] for i in ids], ids=ids)
    >>> retriever = LlamaIndexMatchRetriever(index, MatchFilter(calibrator, threshold=0.5))
    >>> query = QueryBundle("a text", embedding=vectors[7].tolist())  # or a text alone
    >>> [node.node_id for node in retriever.retrieve(query)]
    ['node 7']
    """

    def __init__(
        self,
        index: Any,
        matches: MatchFilter,
        *,
        embed_model: Any = None,
        id_key: str | None = None,
        filters: Any = None,
    ) -> None:
        super().__init__()
        self._index, self._matches, self._id_key = index, matches, id_key
        self._embed_model = embed_model or getattr(index, "_embed_model", None)
        self._filtered = index.as_retriever(similarity_top_k=matches.k, filters=filters)
        self._nearest = None
        if filters is not None:
            self._nearest = index.as_retriever(similarity_top_k=matches.calibrator.neighbours)

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        embedding = query_bundle.embedding
        if embedding is None:
            embedding = self._model().get_agg_embedding_from_queries(query_bundle.embedding_strs)
        vector = self._matches.query_vector(embedding).tolist()
        query = QueryBundle(query_bundle.query_str, embedding=vector)
        level = None
        if self._nearest is not None:
            level = self._matches.level(_scores(self._nearest.retrieve(query)))
        nodes = self._filtered.retrieve(query)
        names = [item_id(node.node.node_id, node.node.metadata, self._id_key) for node in nodes]
        results = list(zip((node.node for node in nodes), names, _scores(nodes), strict=True))
        return [
            NodeWithScore(node=node, score=probability)
            for node, probability, _ in select_items(self._matches, results, level)
        ]

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return await asyncio.to_thread(self._retrieve, query_bundle)

    def _model(self) -> Any:
        if self._embed_model is None:
            raise InvalidInputError("the index has no embedding model. Pass embed_model.")
        return self._embed_model


def _scores(nodes: Sequence[NodeWithScore]) -> list[float]:
    scores = [node.score for node in nodes if node.score is not None]
    if len(scores) < len(nodes):
        raise InvalidInputError(
            "the index returned a node without a score. Use a vector store that returns similarities."
        )
    return scores
