"""Collections of Qdrant and Milvus as sources of wrapped indexes. Your client stays yours: nothing here closes it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from aureole.engines._schema import NO_MU, Rows, no_rows, object_array, pick_rows
from aureole.engines._store import Names, Selection, slack, the_only
from aureole.errors import AureoleError, InvalidInputError, MissingInputError

_SCAN_ROWS = 2**10
_FIRST, _LARGEST = 2**10, 2**14  # rows of a search; Milvus returns up to 16,384


class QdrantSource:
    """A collection with the distance Cosine, Dot or Euclid. Columns are keys of the payload."""

    engine, check_all = "Qdrant", False

    def __init__(self, client: Any, names: Names) -> None:
        self._client, self._name = client, _collection(names, "Qdrant")
        if names.id is not None:
            raise InvalidInputError("the id of a point in Qdrant has no name: omit id.")
        with _reported("Qdrant"):
            if not client.collection_exists(self._name):
                raise MissingInputError(f"Qdrant has no collection {self._name!r}.")
            info = client.get_collection(self._name)
        vectors = info.config.params.vectors
        self._using = None
        if isinstance(vectors, dict):
            where = f"collection {self._name!r}"
            self._using = the_only(list(vectors), names.vector, "vector", where)
            vectors = vectors[self._using]
        elif names.vector is not None or vectors is None:
            raise InvalidInputError(f"collection {self._name!r} has no vector {names.vector!r}.")
        self._metric = str(vectors.distance.value)
        if self._metric not in ("Cosine", "Dot", "Euclid") or vectors.multivector_config:
            raise InvalidInputError(
                f"collection {self._name!r} has multivectors or the distance {self._metric}; caps need one vector per "
                "point with Cosine, Dot or Euclid."
            )
        self.dim, self.unit = int(vectors.size), self._metric != "Cosine"

    def count(self) -> int:
        """The number of points."""
        with _reported("Qdrant"):
            return self._client.count(self._name, exact=True).count

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The points with some ids."""
        with _reported("Qdrant"):
            return self._rows(
                self._client.retrieve(self._name, ids, **self._content(columns)), columns
            )

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]:
        """All points in batches."""
        offset: Any = None
        while True:
            with _reported("Qdrant"):
                points, offset = self._client.scroll(
                    self._name, limit=_SCAN_ROWS, offset=offset, **self._content(columns, vectors)
                )
            if points:
                yield self._rows(points, columns, vectors=vectors)
            if offset is None:
                return

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All points within each query's bound, by a threshold of the score."""
        for query, bound in zip(mu, (bounds - slack(self.dim)).tolist(), strict=True):
            threshold = bound if self._metric != "Euclid" else (2 - 2 * bound) ** 0.5
            limit = _FIRST
            rows = self._search(query, limit, selection, score_threshold=threshold)
            while len(rows) == limit:
                limit *= 4
                rows = self._search(query, limit, selection, score_threshold=threshold)
            yield rows

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest points of each query."""
        for query in mu:
            yield self._search(query, k, selection)

    def approximate(self) -> dict[str, Any] | None:
        """The graph of the collection, once Qdrant has built it; None before, and in its local mode."""
        with _reported("Qdrant"):
            info = self._client.get_collection(self._name)
        return {"kind": "hnsw"} if info.indexed_vectors_count else None

    def close(self) -> None:
        """Do nothing: the client is yours."""

    def _search(self, query: np.ndarray, limit: int, selection: Selection, **how: Any) -> Rows:
        from qdrant_client import models

        with _reported("Qdrant"):
            answer = self._client.query_points(
                self._name,
                query=query.tolist(),
                using=self._using,
                limit=limit,
                search_params=models.SearchParams(exact=selection.exact),
                **how,
                **self._content(selection.columns),
            )
        return self._rows(answer.points, selection.columns)

    def _content(self, columns: Sequence[str], vectors: bool = True) -> dict[str, Any]:
        """What a call returns of each point. Keys with dots or brackets would be paths: then the whole payload."""
        plain = all(name.replace("_", "a").isalnum() for name in columns)
        payload: Any = list(columns) if plain else bool(columns)
        wanted: Any = vectors if self._using is None or not vectors else [self._using]
        return {"with_payload": payload, "with_vectors": wanted}

    def _rows(self, points: Sequence[Any], columns: Sequence[str], *, vectors: bool = True) -> Rows:
        """Rows of points, without those that lack the vector."""
        if vectors:
            found = [
                p.vector if self._using is None else (p.vector or {}).get(self._using)
                for p in points
            ]
            points = [p for p, vector in zip(points, found, strict=True) if vector is not None]
            mu = _matrix([vector for vector in found if vector is not None], self.dim)
        else:
            mu = NO_MU
        payload = {
            name: object_array([(point.payload or {}).get(name) for point in points])
            for name in columns
        }
        ids = object_array([point.id for point in points])
        return Rows(ids, mu, np.zeros(len(points), np.float32), payload)


class MilvusSource:
    """A collection with an index of metric COSINE, IP or L2; FLAT is exact.

    A cap of 16,384 members or more, which Milvus does not return at once, and ``exact`` on an approximate index
    read all rows instead.
    """

    engine, check_all = "Milvus", False

    def __init__(self, client: Any, names: Names) -> None:
        self._client, self._name = client, _collection(names, "Milvus")
        with _reported("Milvus"):
            if not client.has_collection(self._name):
                raise MissingInputError(f"Milvus has no collection {self._name!r}.")
            about = client.describe_collection(self._name)
            self._fields = {field["name"]: field for field in about["fields"]}
        where = f"collection {self._name!r}"
        vectors = [name for name, f in self._fields.items() if f["type"].name == "FLOAT_VECTOR"]
        self._vector = the_only(vectors, names.vector, "field of float vectors", where)
        keys = [name for name, field in self._fields.items() if field.get("is_primary")]
        self._id = the_only(keys, names.id, "primary key", where)
        self._key_type = int if self._fields[self._id]["type"].name == "INT64" else str
        self._dynamic = bool(about.get("enable_dynamic_field"))
        unknown = [name for name in names.columns if name not in self._fields]
        if unknown and not self._dynamic:
            raise InvalidInputError(
                f"{where} has no field {unknown[0]!r}. Fields: {sorted(self._fields)}."
            )
        self.dim = int(self._fields[self._vector]["params"]["dim"])
        self._index, self._metric = self._find_index()
        self.unit = self._metric != "COSINE"

    def count(self) -> int:
        """The number of entities."""
        with _reported("Milvus"):
            found = self._client.query(self._name, filter="", output_fields=["count(*)"])
        return int(found[0]["count(*)"])

    def fetch(self, ids: list[Any], columns: Sequence[str]) -> Rows:
        """The entities with some ids."""
        # not client.get, which puts ids into an expression without escaping quotes
        ids = [i for i in ids if type(i) is self._key_type]
        found: list[dict[str, Any]] = []
        for start in range(0, len(ids), _SCAN_ROWS):
            wanted = ", ".join(map(_literal, ids[start : start + _SCAN_ROWS]))
            found += self._query(f"{self._id} in [{wanted}]", columns)
        return self._rows(found, columns)

    def scan(self, columns: Sequence[str], *, vectors: bool) -> Iterator[Rows]:
        """All entities in batches, in the order of their ids, as pymilvus' iterator reads them."""
        first: Any = "" if self._key_type is str else -(2**63) + 1
        condition = f"{self._id} >= {_literal(first)}"
        last = None
        while batch := self._query(
            condition,
            columns,
            vectors=vectors,
            limit=_SCAN_ROWS,
            iterator="True",
            reduce_stop_for_best="True",
        ):
            yield self._rows(batch, columns, vectors=vectors)
            if last is not None and not batch[-1][self._id] > last:
                raise AureoleError("Milvus returned entities in another order than that of ids.")
            last = batch[-1][self._id]
            condition = f"{self._id} > {_literal(last)}"

    def candidates(
        self, mu: np.ndarray, bounds: np.ndarray, selection: Selection
    ) -> Iterator[Rows]:
        """All entities within each query's bound: by a range search, or by reading all."""
        for query, bound in zip(mu, (bounds - slack(self.dim)).tolist(), strict=True):
            yield self._within(query, bound, selection)

    def nearest(self, mu: np.ndarray, k: int, selection: Selection) -> Iterator[Rows]:
        """The k nearest entities of each query."""
        scans = (selection.exact and self.approximate() is not None) or k > _LARGEST
        for query in mu:
            if scans:
                rows = self._scanned(
                    query, selection.columns, lambda cosine: np.argsort(-cosine)[:k]
                )
                yield pick_rows(rows, np.argsort(-_cosines(rows.mu, query))[:k])
            else:
                yield self._search(query, k, selection.columns, {})

    def _within(self, query: np.ndarray, bound: float, selection: Selection) -> Rows:
        if self.approximate() is None or not selection.exact:
            radius = 2 - 2 * bound if self._metric == "L2" else bound
            rows = self._search(query, _LARGEST, selection.columns, {"radius": radius})
            if len(rows) < _LARGEST:
                return rows
        return self._scanned(
            query, selection.columns, lambda cosine: np.flatnonzero(cosine >= bound)
        )

    def approximate(self) -> dict[str, Any] | None:
        """The kind of the index, or None if it is FLAT."""
        return None if self._index == "FLAT" else {"kind": self._index.lower()}

    def close(self) -> None:
        """Do nothing: the client is yours."""

    def _find_index(self) -> tuple[str, str]:
        """(Kind, metric) of the index of the vectors."""
        with _reported("Milvus"):
            names = self._client.list_indexes(self._name)
            found = [self._client.describe_index(self._name, name) for name in names]
        about = next((f for f in found if f and f.get("field_name") == self._vector), None)
        if about is None or about["metric_type"] not in ("COSINE", "IP", "L2"):
            metric = "no metric" if about is None else about["metric_type"]
            raise InvalidInputError(
                f"field {self._vector!r} of collection {self._name!r} needs an index with the metric COSINE, IP or L2, "
                f"but has {metric}."
            )
        return about["index_type"], about["metric_type"]

    def _search(
        self, query: np.ndarray, limit: int, columns: Sequence[str], params: dict[str, Any]
    ) -> Rows:
        if self.count() == 0:
            return no_rows(columns, self.dim)
        with _reported("Milvus"):
            (found,) = self._client.search(
                self._name,
                data=[query.tolist()],
                anns_field=self._vector,
                limit=limit,
                search_params={"metric_type": self._metric, "params": params},
                output_fields=self._output(columns),
            )
        return self._rows([hit["entity"] for hit in found], columns)

    def _scanned(
        self,
        query: np.ndarray,
        columns: Sequence[str],
        choose: Callable[[np.ndarray], np.ndarray],
    ) -> Rows:
        """Those of all entities that are chosen by their cosines, batch by batch."""
        parts = [
            pick_rows(rows, choose(_cosines(rows.mu, query)))
            for rows in self.scan(columns, vectors=True)
        ]
        if not parts:
            return no_rows(columns, self.dim)
        payload = {name: np.concatenate([p.payload[name] for p in parts]) for name in columns}
        ids, mu = (np.concatenate([getattr(p, name) for p in parts]) for name in ("ids", "mu"))
        return Rows(ids, mu, np.zeros(len(ids), np.float32), payload)

    def _query(
        self, condition: str, columns: Sequence[str], *, vectors: bool = True, **how: Any
    ) -> list[dict[str, Any]]:
        output = self._output(columns, vectors=vectors)
        with _reported("Milvus"):
            return list(
                self._client.query(self._name, filter=condition, output_fields=output, **how)
            )

    def _output(self, columns: Sequence[str], *, vectors: bool = True) -> list[str]:
        return list(dict.fromkeys([self._id, *([self._vector] if vectors else []), *columns]))

    def _rows(
        self, entities: Sequence[dict[str, Any]], columns: Sequence[str], *, vectors: bool = True
    ) -> Rows:
        mu = _matrix([e[self._vector] for e in entities], self.dim) if vectors else NO_MU
        payload = {name: object_array([e.get(name) for e in entities]) for name in columns}
        ids = object_array([entity[self._id] for entity in entities])
        return Rows(ids, mu, np.zeros(len(ids), np.float32), payload)


def _collection(names: Names, engine: str) -> str:
    if not isinstance(names.collection, str):
        raise InvalidInputError(f"name the collection of {engine}: wrap(client, 'items').")
    return names.collection


@contextmanager
def _reported(engine: str) -> Iterator[None]:
    """Raise errors of a client as ``AureoleError``."""
    try:
        yield
    except AureoleError:
        raise
    except Exception as error:  # clients raise errors of gRPC, HTTP, pydantic and their own
        message = " ".join(str(error).split())[:300]
        raise AureoleError(
            f"{engine} could not answer: {message or type(error).__name__}"
        ) from error


def _literal(value: int | str) -> str:
    r"""A value in an expression of Milvus. Its templates would do, but not every server has them.

    Examples
    --------
    >>> print(_literal('a "b" \\ c'), _literal(-3))
    "a \"b\" \\ c" -3
    """
    if isinstance(value, int):
        return str(int(value))
    escapes = {"\\": r"\\", '"': r"\"", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
    return f'"{value.translate(str.maketrans(escapes))}"'


def _matrix(vectors: Sequence[Any], dim: int) -> np.ndarray:
    return np.array(vectors, np.float32).reshape(len(vectors), -1 if len(vectors) else dim)


def _cosines(mu: np.ndarray, query: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(mu, axis=-1)
    return mu @ query / np.where(length > 0, length, 1.0)
