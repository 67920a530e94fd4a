"""A client of the service that needs the standard library alone."""

import base64
import http.client
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError
from aureole.retrieval import Hits, shown_address

_MOST = 256 * 2**20  # bytes of an answer


class ServiceError(AureoleError):
    """An error that the service answered with, or that there was no answer (``code`` is then "unreachable").

    ``code`` is one of those in the API's description, ``status`` the HTTP status, ``field`` what of the request it is
    about, and ``retry_after`` the seconds after which to try again, where the service says so.
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


@dataclass(frozen=True)
class Answer:
    """What a search found: the hits as the index itself gives them, and what the service says about the query.

    ``count`` is the number of members before the limit (a lower bound unless ``count_exact``); ``class_entropy`` is of
    the hits alone, weighed by their positivity; ``explanations`` and ``latent_in_cap`` are there if they were asked
    for; ``raw`` is the JSON.
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


class Client:
    """A connection to a service, kept open; threads may share it, one request at a time.

    Parameters
    ----------
    url
        Such as ``http://127.0.0.1:8765``; https works too.
    key
        The service's key, if it asks for one.
    timeout
        Seconds to wait for a connection and for each part of an answer.

    Examples
    --------
    >>> with Client("http://127.0.0.1:8765") as client:  # doctest: +SKIP
    ...     posterior = client.embed(text="a red shoe")
    ...     found = client.search(text="a red shoe", mass=0.9, limit=10)
    ...     found.hits.ids, found.count
    (['shoe 17', 'shoe 3'], 2)
    """

    def __init__(self, url: str, *, key: str | None = None, timeout: float = 60.0) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = None
            parts = parts._replace(scheme="")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
            raise InvalidInputError(
                f"a service's URL is http://HOST:PORT, but got {shown_address(url)[:100]!r}."
            )
        kind = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        self._connection = kind(parts.hostname, port, timeout=timeout)
        self._prefix = parts.path.rstrip("/")
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self._headers = {"Accept": "application/json"}
        key = (key or "").strip()  # files and shells leave a newline at its end
        if not key.isascii() or not key.isprintable():
            raise InvalidInputError(
                "the key of a service is of printable ASCII characters, but this one has others. It is not shown here; "
                "look for a line break or a letter with an accent in it."
            )
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._lock = threading.Lock()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    def about(self) -> dict[str, Any]:
        """What is served."""
        return self._ask("GET", "/v1/about")

    def items(
        self,
        order: str = "ambiguous",
        *,
        label: str | None = None,
        offset: int = 0,
        limit: int = 60,
    ) -> dict[str, Any]:
        """A page of items, from the least ("ambiguous") or the most ("certain") certain on."""
        values = {"order": order, "offset": offset, "limit": limit}
        if label is not None:
            values["label"] = label
        return self._ask("GET", f"/v1/items?{urlencode(values)}")

    def item(self, name: str) -> dict[str, Any]:
        """An item with its posterior."""
        return self._ask("GET", f"/v1/items/{quote(name, safe='')}")

    def embed(
        self,
        *,
        text: str | Sequence[str] | None = None,
        image: bytes | Path | Sequence[bytes | Path] | None = None,
        vector: Any = None,
        view: Mapping[str, float] | None = None,
    ) -> VonMisesFisher:
        """The posterior of one input, batch shape (), or of a list of them, batch shape (n,).

        ``vector`` may be an array or tensor, [D] or [n, D]. ``view`` crops or blurs pictures first.
        """
        body, single = _embed_body(text, image, vector, view)
        found = self._ask("POST", "/v1/embed", body)["posteriors"]
        mu = torch.tensor([entry["mu"] for entry in found], dtype=torch.float32)
        kappa = torch.tensor([_number(entry["kappa"]) for entry in found], dtype=torch.float32)
        if single:
            return VonMisesFisher(mu[0], kappa[0], validate_args=False)
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
        **options: Any,
    ) -> Answer:
        """The items in the cap of one query: a posterior, an id, a text, a picture or a vector.

        ``filter`` is that of ``CredibleIndex.search``: a tuple is a range. ``options`` are mass, kind, limit, rank,
        guarantee, prior, widest (degrees), explain, exact and count.
        """
        given = [value for value in (posterior, id, text, image, vector) if value is not None]
        if len(given) != 1:
            raise InvalidInputError("give one query: posterior, id, text, image or vector.")
        if posterior is not None:
            query: dict[str, Any] = {
                "mu": posterior.mu.double().tolist(),
                "kappa": float(posterior.kappa),
            }
        elif id is not None:
            query = {"id": id}
        else:
            query, single = _embed_body(text, image, vector, view)
            if not single:
                raise InvalidInputError("a search has one query; ask several times.")
        body = {"query": query, **{k: v for k, v in options.items() if v is not None}}
        if filter:
            body["filter"] = {
                name: {"low": demand[0], "high": demand[1]} if isinstance(demand, tuple) else demand
                for name, demand in filter.items()
            }
        return _answer(self._ask("POST", "/v1/search", body))

    def map(self, query: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """The surroundings of a query, given as the API takes it, on a map; options: mass, kind, limit, dims."""
        return self._ask("POST", "/v1/map", {"query": dict(query), **options})

    def rejection(self) -> dict[str, Any]:
        """The rejection curve of a sample, once it is available."""
        return self._ask("GET", "/v1/rejection")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            content = None if body is None else json.dumps(body, allow_nan=False).encode()
        except ValueError as error:
            raise InvalidInputError(
                f"the request holds a number that is not finite: {error}."
            ) from error
        headers = dict(self._headers)
        if content is not None:
            headers["Content-Type"] = "application/json"
        with self._lock:
            status, answer, after = self._exchange(method, self._prefix + path, content, headers)
        try:
            values = json.loads(answer)
        except ValueError:
            values = None
        if 200 <= status < 300 and values is not None:
            return values
        told = values.get("error") if isinstance(values, dict) else None
        told = told if isinstance(told, dict) else {}
        raise ServiceError(
            str(
                told.get("message")
                or f"{self._url} answered {status}, which is no answer of aureole."
            ),
            code=str(told.get("code", "internal")),
            status=status,
            field=told.get("field"),
            retry_after=float(after) if after and after.isdigit() else None,
        )

    def _exchange(
        self, method: str, path: str, content: bytes | None, headers: dict[str, str]
    ) -> tuple[int, bytes, str | None]:
        """(Status, body, Retry-After); once more if a connection that was kept open has been closed meanwhile.

        Nothing that is asked changes anything, so asking twice does no harm.
        """
        kept = self._connection.sock is not None
        try:
            self._connection.request(method, path, body=content, headers=headers)
            answer = self._connection.getresponse()
            body = answer.read(_MOST + 1)
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            if kept and not isinstance(error, TimeoutError):
                return self._exchange(method, path, content, headers)
            raise ServiceError(
                f"no answer from {self._url}: {error or type(error).__name__}.", code="unreachable"
            ) from error
        if len(body) > _MOST:
            self._connection.close()
            raise ServiceError(f"an answer of more than {_MOST:,} bytes.", code="unreachable")
        return answer.status, body, answer.headers.get("Retry-After")


def _embed_body(
    text: Any, image: Any, vector: Any, view: Mapping[str, float] | None
) -> tuple[dict[str, Any], bool]:
    """(The JSON of inputs, whether it is a single one)."""
    given = {"text": text, "image": image, "vector": vector}
    kinds = [kind for kind, value in given.items() if value is not None]
    if len(kinds) != 1:
        raise InvalidInputError("give one of text, image and vector.")
    kind = kinds[0]
    value = given[kind]
    if kind == "vector":
        value = value.tolist() if hasattr(value, "tolist") else list(value)
        single = not value or not isinstance(value[0], list)
    else:
        single = isinstance(value, str | bytes | Path)
        if kind == "image":
            value = _encoded(value) if single else [_encoded(one) for one in value]
        elif not single:
            value = list(value)
    body: dict[str, Any] = {kind if single else f"{kind}s": value}
    if view is not None:
        body["view"] = dict(view)
    return body, single


def _encoded(picture: bytes | Path) -> str:
    content = picture.read_bytes() if isinstance(picture, Path) else picture
    return base64.b64encode(content).decode()


def _number(value: float | None) -> float:
    """A kappa: JSON has no infinity, so it comes as null."""
    return float("inf") if value is None else value


def _answer(raw: Any) -> Answer:
    try:
        entries = raw["hits"]

        def column(name: str) -> Any:
            values = [entry[name] for entry in entries]
            if not values or any(value is None for value in values):
                return None
            return torch.tensor(values, dtype=torch.float64)

        empty = torch.zeros(0, dtype=torch.float64)
        kappa = torch.tensor([_number(entry["kappa"]) for entry in entries], dtype=torch.float32)
        cosine, names = column("cosine"), list(entries[0]["payload"]) if entries else []
        hits = Hits(
            ids=[entry["id"] for entry in entries],
            cosine=empty if cosine is None else cosine,
            kappa=kappa,
            threshold=torch.tensor([_number(raw["threshold"])], dtype=torch.float64),
            log_positivity=column("positivity"),
            probability=column("positive"),
            payload={name: [entry["payload"][name] for entry in entries] for name in names},
            asks_back=raw["abstain"],
        )
        explained = bool(entries) and entries[0].get("explanation") is not None
        latent = explained and entries[0].get("latent_in_cap") is not None
        return Answer(
            hits=hits,
            kappa=_number(raw["query"]["kappa"]),
            kappa_rank=raw["query"]["kappa_rank"],
            about=raw["query"]["about"],
            cap=raw["cap"],
            count=raw["count"],
            count_exact=raw["count_exact"],
            truncated=raw["truncated"],
            class_entropy=raw["class_entropy"],
            explanations=[entry["explanation"] for entry in entries] if explained else None,
            latent_in_cap=[entry["latent_in_cap"] for entry in entries] if latent else None,
            raw=raw,
        )
    except (KeyError, TypeError, IndexError) as error:
        raise ServiceError(
            f"the answer is not that of a search: {error!r}.", code="internal"
        ) from error
