"""``openai:URL#MODEL``: the /v1/embeddings protocol of OpenAI, vLLM, TEI, Infinity and Ollama.

The API key comes from the environment variable OPENAI_API_KEY. It is sent to this URL only, and never stored or logged;
redirects are not followed.
"""

import os
import random
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from aureole.encoders._encoder import Encoder, Kind, first_line
from aureole.errors import EncoderError, MissingPackageError

KEY = "OPENAI_API_KEY"
TIMEOUT, RETRIES = "AUREOLE_API_TIMEOUT", "AUREOLE_API_RETRIES"
_IN_FLIGHT = 4  # requests at a time
_TRY_AGAIN = (408, 409, 425, 429, 500, 502, 503, 504)
_LONGEST_WAIT = 60.0  # seconds between two tries
_MAX_DIM = 65_536


def load(name: str, kind: Kind | None = None) -> Encoder:
    """The encoder of a model behind a URL; one short text is encoded to check that it answers."""
    del kind
    url, _, model = name.partition("#")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not model:
        raise EncoderError(
            "write openai:URL#MODEL, such as openai:https://api.openai.com/v1#text-embedding-3-small."
        )
    if parts.username or parts.password:
        raise EncoderError(f"the URL must not contain a password: put the API key into {KEY}.")
    return ApiEncoder(url, model, timeout=_number(TIMEOUT, 60.0), retries=int(_number(RETRIES, 5)))


class ApiEncoder(Encoder):
    """A text encoder behind an HTTP API.

    Requests that fail for a reason that may pass (429, 5xx, no connection, a timeout) are repeated, with waits that
    double from half a second, or as long as the server asks for.

    Parameters
    ----------
    url, model
        The base URL, such as "http://127.0.0.1:8000/v1", and the name of the model.
    timeout
        Seconds per request (default 60; $AUREOLE_API_TIMEOUT).
    retries
        Repetitions of a failed request (default 5; $AUREOLE_API_RETRIES).
    """

    kind = "text"
    group = _IN_FLIGHT

    def __init__(self, url: str, model: str, *, timeout: float = 60.0, retries: int = 5) -> None:
        try:
            import httpx
        except ImportError as error:
            raise MissingPackageError("openai:URL#MODEL needs httpx: pip install httpx.") from error
        self._httpx: Any = httpx
        base = url.rstrip("/")
        if not urlsplit(base).path:
            base += "/v1"
        self._url = base if base.endswith("/embeddings") else f"{base}/embeddings"
        self._model, self._timeout, self._retries = model, timeout, retries
        self.name = f"openai:{url}#{model}"
        self._client = httpx.Client(timeout=timeout)
        weakref.finalize(self, self._client.close)
        try:
            self.dim = self._probe()
        except BaseException:
            self._client.close()
            raise
        # the weights are not known, so a fingerprint is the model's name and dimension; the URL may change
        self.fingerprint = sha256(f"openai {model} {self.dim}".encode()).hexdigest()

    def vectors(self, prepared: Sequence[Any], *, batch: int | None = None) -> np.ndarray:
        """The vectors of texts; several batches are in flight at once."""
        size = batch or max(1, len(prepared))
        starts = range(0, len(prepared), size)
        if len(starts) < 2:
            return super().vectors(prepared, batch=batch)
        parts = [prepared[start : start + size] for start in starts]
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="api") as pool:
            return np.concatenate(list(pool.map(super().vectors, parts)))

    def _vectors(self, prepared: list[Any]) -> np.ndarray:
        response = self._post({"model": self._model, "input": list(prepared)})
        try:
            rows = response.json()["data"]
            rows = sorted(rows, key=lambda row: row["index"])
            if [row["index"] for row in rows] != list(range(len(prepared))):
                raise ValueError(f"{len(rows)} embeddings for {len(prepared)} texts")
            vectors = np.array([row["embedding"] for row in rows], np.float32)
            if vectors.ndim != 2 or not 1 <= vectors.shape[1] <= _MAX_DIM:
                raise ValueError(f"embeddings of shape {vectors.shape}")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EncoderError(
                f"{self._url} did not answer as /v1/embeddings does: {type(error).__name__}: {first_line(error)}"
            ) from error
        return vectors

    def _post(self, body: dict[str, Any]) -> Any:
        """The response with status 200, after as many tries as allowed."""
        httpx, reason = self._httpx, ""
        key = os.environ.get(KEY)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        for attempt in range(self._retries + 1):
            asked = None
            try:
                response = self._client.post(self._url, json=body, headers=headers)
            except httpx.TimeoutException:
                reason = f"no answer within {self._timeout:g} seconds"
            except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:
                reason = first_line(error).removesuffix(".")
            else:
                if response.status_code == 200:
                    return response
                reason = f"status {response.status_code}{_said(response, key)}"
                if response.status_code not in _TRY_AGAIN:
                    break
                asked = _seconds(response.headers.get("Retry-After"))
            if attempt < self._retries:
                backoff = 0.5 * 2**attempt * random.uniform(0.8, 1.2)
                time.sleep(min(backoff if asked is None else asked, _LONGEST_WAIT))
        raise EncoderError(
            f"{self._url} did not encode {len(body['input'])} texts with {self._model!r}: {reason}. "
            f"Check the URL, the model and {KEY}."
        )


def _said(response: Any, key: str | None) -> str:
    """The server's reason, on one line, without the key."""
    text = " ".join(response.text[:2000].split())
    if key:
        text = text.replace(key, "***")
    return f" ({text[:200]})" if text else ""


def _seconds(text: str | None) -> float | None:
    """The seconds of a Retry-After header; None for a date or nothing."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise EncoderError(f"{name} must be a number of 0 or more, but is {text!r}.")
    return value
