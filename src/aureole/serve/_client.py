"""A client of the service, on httpx."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack
from urllib.parse import quote

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError, MissingPackageError
from aureole.retrieval import Hits, shown_address

if TYPE_CHECKING:
    import httpx


class ServiceError(AureoleError):
    """An error response of the service, or a failure to reach it (``code`` is then "unreachable").

    ``code`` is an error code of the API, ``status`` the HTTP status, ``field`` the offending part of the request, and
    ``retry_after`` the seconds to wait before a retry, if the service sent them.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        status: int | None = None,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.status, self.field, self.retry_after = code, status, field, retry_after


class MapOptions(TypedDict, total=False):
    """Options of ``Client.map``."""

    mass: float
    kind: Literal["credible", "predictive"]
    limit: int
    dims: Literal[2, 3]


class SearchOptions(TypedDict, total=False):
    """Options of ``Client.search``; None means the service's default."""

    mass: float | None
    kind: Literal["credible", "predictive"] | None
    limit: int | None
    rank: Literal["cosine", "positivity"] | None
    guarantee: Literal["model", "conformal"] | None
    prior: float | None
    widest: float | None
    explain: bool | None
    exact: bool | None
    count: bool | None


@dataclass(frozen=True)
class SearchResult:
    """The hits of a search, as ``CredibleIndex.search`` returns them, and the service's description of the query.

    ``count`` is the number of items in the cap before the limit, a lower bound unless ``count_exact``;
    ``partial`` means that a shard of the gallery did not respond, and its items are missing;
    ``class_entropy`` is the label entropy of the hits, weighted by positivity; ``explanations`` and ``latent_in_cap``
    are None unless requested; ``raw`` is the JSON response.
    """

    hits: Hits
    kappa: float
    kappa_rank: float
    about: str
    cap: dict[str, Any]
    count: int
    count_exact: bool
    truncated: bool
    class_entropy: float | None
    explanations: list[str] | None = None
    latent_in_cap: list[float] | None = None
    raw: dict[str, Any] = field(default_factory=dict, repr=False)


class MatchOptions(TypedDict, total=False):
    """Options of ``Client.match``; None means the service's default."""

    threshold: float | None
    precision: float | None
    recall: float | None
    limit: int | None
    abstain: float | None
    exact: bool | None


@dataclass(frozen=True)
class MatchResult:
    """The likely matches of a query, the most probable first.

    ``hits`` and ``probabilities`` are in the same order. ``p_value`` is that of ``MatchCalibrator.no_match_p_value``;
    ``reason`` says why there are no matches, and ``note`` that the precision or recall cannot be guaranteed; ``raw`` is
    the JSON response.
    """

    hits: Hits
    probabilities: Float[np.ndarray, " n"]
    threshold: float
    p_value: float
    abstained: bool
    reason: str | None
    note: str | None
    kappa: float
    about: str
    raw: dict[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.hits)


class Client:
    """A client of ``aureole serve``. Thread-safe; connections are kept open. Needs ``pip install 'aureole[serve]'``.

    Parameters
    ----------
    url
        The URL of the service, such as ``http://127.0.0.1:8765``.
    key
        The API key, if the service requires one.
    timeout
        Seconds to wait for a connection, and for each read and write (default 60).

    Examples
    --------
    >>> with Client("http://127.0.0.1:8765") as client:  # doctest: +SKIP
    ...     posterior = client.embed(text="a red shoe")
    ...     result = client.search(text="a red shoe", mass=0.9, limit=10)
    ...     result.hits.ids, result.count
    (['shoe 17', 'shoe 3'], 2)
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        httpx = _import_httpx()
        try:
            parsed = httpx.URL(url)
        except httpx.InvalidURL:
            parsed = httpx.URL("")
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.query:
            shown = shown_address(url)[:100]
            raise InvalidInputError(f"the URL of a service is http://HOST:PORT, but got {shown!r}.")
        key = (key or "").strip()  # files and shells leave a trailing newline
        if not key.isascii() or not key.isprintable():
            raise InvalidInputError(
                "the API key must consist of printable ASCII characters. Check it for line breaks and accented letters."
            )
        headers = {"Accept": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        parsed = parsed.copy_with(userinfo=b"")  # a password in the URL would replace the key
        self._url = str(parsed)
        self._http = httpx.Client(base_url=parsed, headers=headers, timeout=timeout)

    def __repr__(self) -> str:
        return f"Client({self._url!r})"

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def about(self) -> dict[str, Any]:
        """A description of the gallery and the encoder."""
        return self._request("GET", "v1/about")

    def items(
        self,
        order: Literal["ambiguous", "certain"] = "ambiguous",
        *,
        label: str | None = None,
        offset: int = 0,
        limit: int = 60,
    ) -> dict[str, Any]:
        """A page of items, least certain ("ambiguous") or most certain ("certain") first."""
        parameters = {"order": order, "offset": offset, "limit": limit}
        if label is not None:
            parameters["label"] = label
        return self._request("GET", "v1/items", parameters=parameters)

    def item(self, name: str) -> dict[str, Any]:
        """An item with its posterior."""
        return self._request("GET", _item_path(name))

    def embed(
        self,
        *,
        text: str | Sequence[str] | None = None,
        image: bytes | Path | Sequence[bytes | Path] | None = None,
        vector: Any = None,
        view: Mapping[str, float] | None = None,
    ) -> VonMisesFisher:
        """The posterior of one input, batch shape (), or of a list of inputs, batch shape (n,).

        ``vector`` may be an array or a tensor, [D] or [n, D]. ``view`` crops and blurs pictures first.
        """
        body, single = _embed_body(text, image, vector, view)
        posteriors = self._request("POST", "v1/embed", body)["posteriors"]
        mu = torch.tensor([entry["mu"] for entry in posteriors], dtype=torch.float32)
        kappa = torch.tensor([_kappa(entry) for entry in posteriors], dtype=torch.float32)
        if single:
            mu, kappa = mu[0], kappa[0]
        return VonMisesFisher(mu, kappa, validate_args=False)

    def search(
        self,
        posterior: VonMisesFisher | None = None,
        *,
        id: str | None = None,
        text: str | None = None,
        image: bytes | Path | None = None,
        vector: Any = None,
        view: Mapping[str, float] | None = None,
        filter: Mapping[str, Any] | None = None,
        **options: Unpack[SearchOptions],
    ) -> SearchResult:
        """The items inside the cap of one query: a posterior, an id, a text, a picture or a vector.

        Parameters
        ----------
        filter
            Conditions on payload columns, as for ``CredibleIndex.search``: a value, a list, or a tuple (low, high).
        mass, kind, limit, rank, guarantee, prior, exact
            As for ``CredibleIndex.search``.
        widest
            Degrees; a query with a wider cap gets no hits.
        explain
            Explain each hit.
        count
            Count the items beyond the limit (default true).
        """
        query = _query_body("search", posterior, id, (text, image, vector), view)
        body = {"query": query, **_given(options, filter)}
        return _search_result(self._request("POST", "v1/search", body))

    def match(
        self,
        posterior: VonMisesFisher | None = None,
        *,
        id: str | None = None,
        text: str | None = None,
        image: bytes | Path | None = None,
        vector: Any = None,
        filter: Mapping[str, Any] | None = None,
        **options: Unpack[MatchOptions],
    ) -> MatchResult:
        """The likely matches of one query: a posterior, an id, a text, a picture or a vector.

        The service must have been started with ``--calibrator``.

        Parameters
        ----------
        filter
            Conditions on payload columns, as for ``CredibleIndex.search``.
        threshold, precision, recall
            At most one: the smallest probability, the share of results that match, or the share of matches that are
            returned (default: the threshold of the best F1 score on the calibrator's held-out queries).
        limit
            Most matches (default: that of the calibrator).
        abstain
            Largest p-value with which a query gets matches (default: all queries do).
        exact
            Bypass an approximate index.
        """
        query = _query_body("match", posterior, id, (text, image, vector), None)
        body = {"query": query, **_given(options, filter)}
        return _match_result(self._request("POST", "v1/match", body))

    def upsert(
        self,
        ids: Sequence[str],
        posteriors: VonMisesFisher | None = None,
        *,
        text: Sequence[str] | None = None,
        image: Sequence[bytes | Path] | None = None,
        vector: Any = None,
        payload: Mapping[str, Sequence[Any]] | None = None,
    ) -> int:
        """Store up to 256 items, and replace those whose id exists: all or none. Return how many were replaced.

        The items are posteriors, texts, pictures or vectors [n, D]. The service must have been started with
        ``--writable``.
        """
        if posteriors is None:
            items, _ = _embed_body(text, image, vector, None)
        elif text is None and image is None and vector is None:
            rows = zip(posteriors.mu.tolist(), posteriors.kappa.tolist(), strict=True)
            items = {"posteriors": [{"mu": mu, "kappa": kappa} for mu, kappa in rows]}
        else:
            raise InvalidInputError("upsert takes posteriors or inputs, not both.")
        columns = {name: list(values) for name, values in (payload or {}).items()}
        body = {"ids": list(ids), "items": items, "payload": columns}
        return self._request("POST", "v1/items", body)["replaced"]

    def delete(self, name: str) -> bool:
        """Delete an item; return whether it existed.

        If the connection breaks, the request is repeated. The result is then False if the first one deleted the item.
        """
        try:
            self._request("DELETE", _item_path(name))
        except ServiceError as error:
            if error.code != "not_found":
                raise
            return False
        return True

    def map(self, query: Mapping[str, Any], **options: Unpack[MapOptions]) -> dict[str, Any]:
        """The neighbourhood of a query on a map; query and options (mass, kind, limit, dims) as in the HTTP API."""
        return self._request("POST", "v1/map", {"query": dict(query), **options})

    def calibration(self) -> dict[str, Any]:
        """The coverage of predictive caps on held-out pairs, if the gallery has a conformal calibration."""
        return self._request("GET", "v1/calibration")

    def rejection(self) -> dict[str, Any]:
        """The rejection curve of a sample, once it is available."""
        return self._request("GET", "v1/rejection")

    def _request(self, method: str, path: str, body: Any = None, *, parameters: Any = None) -> Any:
        content, headers = None, {}
        if body is not None:
            try:
                content = json.dumps(body, allow_nan=False).encode()
            except ValueError as error:
                raise InvalidInputError(
                    f"a number in the request is not finite: {error}."
                ) from error
            headers["Content-Type"] = "application/json"
        request = self._http.build_request(
            method, path, params=parameters, content=content, headers=headers
        )
        response = self._send(request)
        try:
            values = response.json()
        except ValueError:
            values = None
        if response.is_success and values is not None:
            return values
        error = values.get("error") if isinstance(values, dict) else None
        error = error if isinstance(error, dict) else {}
        message = f"{self._url} answered {response.status_code}, but not as an aureole service."
        retry_after = response.headers.get("Retry-After", "")
        raise ServiceError(
            str(error.get("message") or message),
            code=str(error.get("code", "internal")),
            status=response.status_code,
            field=error.get("field"),
            retry_after=float(retry_after) if retry_after.isdigit() else None,
        )

    def _send(self, request: "httpx.Request", *, retry: bool = True) -> "httpx.Response":
        """The response; retried once if the connection breaks, since repeating a request has no further effect."""
        httpx = _import_httpx()
        try:
            return self._http.send(request)
        except httpx.HTTPError as error:
            broken = isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError)
            if retry and broken and not isinstance(error, httpx.ConnectError):
                return self._send(request, retry=False)
            reason = str(error) or type(error).__name__
            raise ServiceError(
                f"no response from {self._url}: {reason}.", code="unreachable"
            ) from error


def _import_httpx() -> Any:
    """The package httpx, imported when a client is created."""
    try:
        import httpx
    except ImportError as error:
        raise MissingPackageError(
            "the client needs httpx, which is not installed: pip install 'aureole[serve]'."
        ) from error
    return httpx


def _query_body(
    method: str,
    posterior: VonMisesFisher | None,
    id: str | None,
    inputs: tuple[Any, Any, Any],
    view: Mapping[str, float] | None,
) -> dict[str, Any]:
    """A query as JSON; ``inputs`` are a text, an image and a vector, of which at most one is not None."""
    given = sum(value is not None for value in (posterior, id, *inputs))
    if given != 1:
        raise InvalidInputError(
            f"{method} takes one query (posterior, id, text, image or vector), but got {given}."
        )
    if posterior is not None:
        return {"mu": posterior.mu.double().tolist(), "kappa": float(posterior.kappa)}
    if id is not None:
        return {"id": id}
    query, single = _embed_body(*inputs, view)
    if not single:
        raise InvalidInputError(f"{method} takes one query; call it once for each.")
    return query


def _given(options: Mapping[str, Any], filter: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options that are not None, and the filter, as JSON."""
    body = {name: value for name, value in options.items() if value is not None}
    if filter:
        body["filter"] = {
            name: {"low": value[0], "high": value[1]} if isinstance(value, tuple) else value
            for name, value in filter.items()
        }
    return body


def _item_path(name: str) -> str:
    return "v1/items/" + quote(name, safe="").replace(".", "%2E")  # httpx resolves . and ..


def _embed_body(
    text: Any, image: Any, vector: Any, view: Mapping[str, float] | None
) -> tuple[dict[str, Any], bool]:
    """(The inputs as JSON, whether they are a single one)."""
    values = {"text": text, "image": image, "vector": vector}
    kinds = [kind for kind, value in values.items() if value is not None]
    if len(kinds) != 1:
        raise InvalidInputError(
            f"exactly one of text, image and vector is required, but got {len(kinds)}."
        )
    kind = kinds[0]
    value = values[kind]
    if kind == "vector":
        value = value.tolist() if hasattr(value, "tolist") else list(value)
        single = not value or not isinstance(value[0], list)
    else:
        single = isinstance(value, str | bytes | Path)
        if kind == "image":
            value = _base64(value) if single else [_base64(one) for one in value]
        elif not single:
            value = list(value)
    body: dict[str, Any] = {kind if single else f"{kind}s": value}
    if view is not None:
        body["view"] = dict(view)
    return body, single


def _base64(picture: bytes | Path) -> str:
    content = picture.read_bytes() if isinstance(picture, Path) else picture
    return base64.b64encode(content).decode()


def _kappa(entry: Mapping[str, Any]) -> float:
    """The kappa of an entry; JSON has no infinity, so null stands for it."""
    return float("inf") if entry["kappa"] is None else entry["kappa"]


def _search_result(raw: Any) -> SearchResult:
    try:
        entries = raw["hits"]

        def column(name: str) -> list[Any] | None:
            """The values of a key, or None if they are missing."""
            values = [entry.get(name) for entry in entries]
            return values if values and None not in values else None

        def tensor(name: str) -> Tensor | None:
            values = column(name)
            return None if values is None else torch.tensor(values, dtype=torch.float64)

        cosine = tensor("cosine")
        threshold = float("inf") if raw["threshold"] is None else raw["threshold"]
        names = entries[0]["payload"] if entries else ()
        hits = Hits(
            ids=[entry["id"] for entry in entries],
            cosine=torch.zeros(0, dtype=torch.float64) if cosine is None else cosine,
            kappa=torch.tensor([_kappa(entry) for entry in entries], dtype=torch.float32),
            threshold=torch.tensor([threshold], dtype=torch.float64),
            log_positivity=tensor("positivity"),
            probability=tensor("positive"),
            payload={name: [entry["payload"][name] for entry in entries] for name in names},
            asks_back=raw["abstain"],
        )
        same = ("cap", "count", "count_exact", "truncated", "class_entropy")
        return SearchResult(
            hits=hits,
            kappa=_kappa(raw["query"]),
            kappa_rank=raw["query"]["kappa_rank"],
            about=raw["query"]["about"],
            explanations=column("explanation"),
            latent_in_cap=column("latent_in_cap"),
            raw=raw,
            **{name: raw[name] for name in same},
        )
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ServiceError(
            f"the response is not a search result of aureole: {error!r}.", code="internal"
        ) from error


def _match_result(raw: Any) -> MatchResult:
    try:
        entries = raw["matches"]
        names = entries[0]["payload"] if entries else ()
        hits = Hits(
            ids=[entry["id"] for entry in entries],
            cosine=torch.tensor([entry["cosine"] for entry in entries], dtype=torch.float64),
            kappa=torch.tensor([_kappa(entry) for entry in entries], dtype=torch.float32),
            threshold=torch.full((1,), -1.0, dtype=torch.float64),
            payload={name: [entry["payload"][name] for entry in entries] for name in names},
        )
        same = ("threshold", "p_value", "abstained", "reason", "note")
        return MatchResult(
            hits=hits,
            probabilities=np.array([entry["probability"] for entry in entries], dtype=np.float64),
            kappa=_kappa(raw["query"]),
            about=raw["query"]["about"],
            raw=raw,
            **{name: raw[name] for name in same},
        )
    except (KeyError, TypeError, IndexError, AttributeError, ValueError) as error:
        raise ServiceError(
            f"the response is not a match result of aureole: {error!r}.", code="internal"
        ) from error
