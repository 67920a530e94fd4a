"""Match probabilities in LangChain. The only module that imports langchain-core."""

from typing import Any

from aureole.errors import InvalidInputError, MissingPackageError
from aureole.match._filter import MatchFilter, item_id, select_items

try:
    from langchain_core.callbacks import CallbackManagerForRetrieverRun
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import Field, SkipValidation
except ImportError as error:
    raise MissingPackageError(
        "LangChainMatchRetriever needs langchain-core: pip install langchain-core."
    ) from error

# Stores name the search by a vector with scores in one of these ways.
_METHODS = (
    "similarity_search_with_score_by_vector",
    "similarity_search_by_vector_with_relevance_scores",
)


class LangChainMatchRetriever(BaseRetriever):
    """A LangChain retriever that returns the likely matches of a vector store, the most probable first.

    The metadata of each document gets ``match_probability`` and ``match_cosine``.

    LangChain does not fix what the scores of a store are, and the names of its methods do not say it. Look it up and
    set ``MatchFilter(scores=...)``: InMemoryVectorStore and Qdrant return cosines, Chroma returns the distance of its
    collection ("cosine_distance" or "squared_l2") even as relevance score, PGVector returns cosine distances, FAISS
    squared Euclidean distances by default. Distances that are passed as cosines are reported as an error.

    Parameters
    ----------
    store
        A vector store with the method ``similarity_search_with_score_by_vector`` or
        ``similarity_search_by_vector_with_relevance_scores``, or a function ``store(vector, k, **search_kwargs)`` that
        returns pairs of a document and its score.
    matches
        The calibrator, the threshold, and what the scores of the store are.
    embeddings
        Embeds the query (default: the embeddings of the store).
    id_key
        Key of the metadata that holds the id of the calibrator's item (default: the id of the document).
    search_kwargs
        Arguments of the search, such as a filter. With any, the level of the query comes from a second search without
        them.

    Examples
    --------
    >>> from langchain_core.embeddings import DeterministicFakeEmbedding
    >>> from langchain_core.vectorstores import InMemoryVectorStore
    >>> from aureole.match import MatchCalibrator, MatchFilter
    >>> texts = [f"text {i}" for i in range(100)]
    >>> store = InMemoryVectorStore(DeterministicFakeEmbedding(size=16))
    >>> ids = store.add_texts(texts, ids=texts)
    >>> vectors = store.embeddings.embed_documents(texts)
    >>> calibrator = MatchCalibrator().fit(vectors, vectors, [[text] for text in texts], ids=texts)
    >>> matches = MatchFilter(calibrator, threshold=0.5)
    >>> retriever = LangChainMatchRetriever(store=store, matches=matches)
    >>> [document.page_content for document in retriever.invoke("text 7")]
    ['text 7']
    """

    store: Any
    matches: SkipValidation[MatchFilter]
    embeddings: Any = None
    id_key: str | None = None
    search_kwargs: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun
    ) -> list[Document]:
        """The likely matches of a text."""
        del run_manager
        vector = self.matches.query_vector(self._embeddings().embed_query(query)).tolist()
        level = None
        if self.search_kwargs:
            nearest = self._search(vector, self.matches.calibrator.neighbours)
            level = self.matches.level([score for _, score in nearest])
        found = [
            (document, item_id(document.id, document.metadata, self.id_key), score)
            for document, score in self._search(vector, self.matches.k, **self.search_kwargs)
        ]
        return [
            document.model_copy(
                update={
                    "metadata": document.metadata
                    | {"match_probability": probability, "match_cosine": cosine}
                }
            )
            for document, probability, cosine in select_items(self.matches, found, level)
        ]

    def _embeddings(self) -> Any:
        embeddings = self.embeddings or getattr(self.store, "embeddings", None)
        if embeddings is None:
            raise InvalidInputError("the store has no embeddings. Pass embeddings.")
        return embeddings

    def _search(
        self, vector: list[float], k: int, **search_kwargs: Any
    ) -> list[tuple[Document, float]]:
        methods = [getattr(self.store, name, None) for name in _METHODS]
        search: Any = next((method for method in methods if method is not None), self.store)
        if not callable(search):
            raise InvalidInputError(
                f"{type(self.store).__name__} has no search by vector that returns scores. Pass a function as store."
            )
        results: Any = search(vector, k=k, **search_kwargs)
        return results
