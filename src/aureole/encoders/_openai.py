"""``openai:URL#MODEL``: the /v1/embeddings protocol of OpenAI, vLLM, TEI, Infinity and Ollama, by the client of OpenAI.

The API key comes from the environment variable OPENAI_API_KEY. It is sent to this URL only, and never stored or logged;
redirects are not followed.
"""

import os
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from aureole.data._table_files import reason
from aureole.encoders._encoder import Encoder, Kind
from aureole.errors import EncoderError

KEY, TIMEOUT, RETRIES = "OPENAI_API_KEY", "AUREOLE_API_TIMEOUT", "AUREOLE_API_RETRIES"
_IN_FLIGHT = 4  # requests at a time
_MAX_DIM = 65_536


def load(name: str, kind: Kind | None = None) -> Encoder:
    """Return the encoder of a model behind a URL; one short text is encoded to check that it answers."""
    del kind
    url, _, model = name.partition("#")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not model:
        raise EncoderError(
            "write openai:URL#MODEL, such as openai:https://api.openai.com/v1#text-embedding-3-small."
        )
    if parts.username or parts.password:
        raise EncoderError(f"the URL must not contain a password: put the API key into {KEY}.")
    base = url.rstrip("/") if parts.path.strip("/") else f"{url.rstrip('/')}/v1"
    return ApiEncoder(base.removesuffix("/embeddings"), model)


class ApiEncoder(Encoder):
    """A text encoder behind an HTTP API.

    Requests that fail for a reason that may pass (429, 5xx, no connection, a timeout) are repeated by the client, five
    times ($AUREOLE_API_RETRIES); a request may take 60 seconds ($AUREOLE_API_TIMEOUT).

    Parameters
    ----------
    url, model
        The base URL, such as "http://127.0.0.1:8000/v1", and the name of the model.
    """

    kind = "text"
    group = _IN_FLIGHT

    def __init__(self, url: str, model: str) -> None:
        import openai

        self.name, self._url, self._model = f"openai:{url}#{model}", url, model
        client = openai.OpenAI(
            base_url=url,
            api_key=os.environ.get(KEY) or "none",
            timeout=_number(TIMEOUT, 60.0),
            max_retries=int(_number(RETRIES, 5)),
            http_client=openai.DefaultHttpxClient(follow_redirects=False),
        )
        weakref.finalize(self, client.close)
        self._create, self._error = client.embeddings.create, openai.OpenAIError
        self.dim = self._probe()
        # the weights are not known, so a fingerprint is the model's name and dimension; the URL may change
        self.fingerprint = sha256(f"openai {model} {self.dim}".encode()).hexdigest()

    def vectors(self, prepared: Sequence[Any], *, batch: int | None = None) -> np.ndarray:
        """Return the vectors of texts; several batches are in flight at once."""
        size = batch or max(1, len(prepared))
        parts = [prepared[start : start + size] for start in range(0, len(prepared), size)]
        if len(parts) < 2:
            return super().vectors(prepared, batch=batch)
        with ThreadPoolExecutor(_IN_FLIGHT, thread_name_prefix="api") as pool:
            return np.concatenate(list(pool.map(super().vectors, parts)))

    def _vectors(self, prepared: list[Any]) -> np.ndarray:
        asked = f"{self._url} did not encode {len(prepared)} texts with {self._model!r}"
        try:
            answer = self._create(model=self._model, input=prepared, encoding_format="float")
            rows = sorted(answer.data, key=lambda row: row.index)
            if [row.index for row in rows] != list(range(len(prepared))):
                raise ValueError(f"{len(rows)} embeddings for {len(prepared)} texts")
            vectors = np.array([row.embedding for row in rows], np.float32)
            if vectors.ndim != 2 or not 1 <= vectors.shape[1] <= _MAX_DIM:
                raise ValueError(f"embeddings of shape {vectors.shape}")
        except self._error as error:
            # a server may repeat the key
            said = reason(error).replace(os.environ.get(KEY) or "\0", "***")
            raise EncoderError(f"{asked}: {said} Check the URL, the model and {KEY}.") from None
        except (ValueError, AttributeError, TypeError, RecursionError) as error:
            raise EncoderError(
                f"{asked}: it did not answer as /v1/embeddings does: {type(error).__name__}: {reason(error)}"
            ) from error
        return vectors


def _number(name: str, default: float) -> float:
    text = os.environ.get(name)
    try:
        value = default if text is None else float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise EncoderError(f"{name} must be a number of 0 or more, but is {text!r}.")
    return value
