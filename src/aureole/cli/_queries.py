"""Queries of ``aureole search``: an item, a row of a table, a text or a picture as a posterior."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aureole as au
from aureole.cli._inputs import EncoderSpec
from aureole.cli._lazy import torch
from aureole.cli._options import KEY, KappaPos, Normalized, OptionalHead, option
from aureole.cli._output import printable
from aureole.errors import InvalidInputError

_MAX_SERVED = 1000  # hits that a service returns at most
_WIDTH = 40  # characters of a value


@dataclass(frozen=True)
class QueryOptions:
    """The query: exactly one of an id, a row of a table, a text or a picture."""

    item: str | None = option("Query with an item of the gallery.", None, "--id")
    vector_from: Path | None = option(
        "Query with a row of this table: a vector with --head, a text or picture with --encoder, or mu and kappa."
    )
    row: int | None = option("Row number, from 0.", min=0)
    text: str | None = option(
        "Query with a text, encoded by --encoder and, if it gives vectors, --head."
    )
    image: Path | None = option("Query with a picture, encoded like a text.")


@dataclass(frozen=True)
class ModelOptions:
    """The model of the query, or the columns of its table."""

    head: OptionalHead = None
    encoder: EncoderSpec = None
    normalized: Normalized = None
    text_column: str | None = option("With --encoder: column of texts of --vector-from.")
    image_column: str | None = option("With --encoder: column of pictures of --vector-from.")
    vector_column: str | None = option("With --head: column of vectors.")
    mu_column: str = option("Without --head: column of mu.", "mu")
    kappa_column: str = option("Without --head: column of kappa.", "kappa")


@dataclass(frozen=True)
class CapOptions:
    """The cap, which decides how many items are results."""

    mass: float = option("Probability mass of the cap, between 0 and 1.", 0.95)
    kind: Literal["credible", "predictive"] | None = option(
        "What the cap answers: what matches the query (predictive, the default if kappa_pos is known), "
        "or what the query could be (credible)."
    )
    kappa_pos: KappaPos = None
    guarantee: Literal["conformal"] | None = option(
        "Use the calibrated predictive cap, whose coverage is guaranteed on average over pairs."
    )
    widest: float | None = option(
        "Return nothing if the cap is wider than this many degrees.", min=0, max=180
    )


@dataclass(frozen=True)
class ResultOptions:
    """Which results to return, and in which order."""

    limit: int | None = option("Maximum number of results.", min=1)
    prior: float | None = option(
        "Share of all items that match a query: adds P(positive) to the results.", min=0, max=1
    )
    rank: Literal["cosine", "positivity"] = option("Order of the results.", "cosine")
    filters: list[str] | None = option(
        "Condition on a payload column; repeatable.",
        None,
        "--filter",
        metavar="COL=VALUE|A,B|LOW..HIGH",
    )
    exact: bool = option("Do not use an approximate index.", False, "--exact")
    explain: bool = option("Print why each result is in the cap.", False, "--explain")


@dataclass(frozen=True)
class Query:
    """A posterior of batch shape (), a description, and the kappa_pos of the model that produced it, if known."""

    posterior: au.VonMisesFisher | au.MixtureVMF
    about: str
    kappa_pos: float | None = None
    item: str | None = None


@dataclass(frozen=True)
class Answer:
    """The result of a search: the query, the hits, their explanation, the cap, and warnings."""

    query: Query
    hits: au.retrieval.Hits
    why: au.retrieval.Explanation
    cap: dict[str, Any]
    notes: list[str]


def build_query(index: au.CredibleIndex, query: QueryOptions, model: ModelOptions) -> Query:
    """The posterior of a query to a gallery."""
    if query.item is not None:
        stored, _ = index.fetch([query.item])
        return Query(_single(stored), f"item {query.item[:60]!r}", item=query.item)
    about, kind, raw = _raw_query(query, model)
    if kind is None:
        assert query.vector_from is not None
        return Query(_row_posterior(query.vector_from, query.row or 0, model), about)
    spec = au.scale.ModelSpec(model.encoder, model.head, model.normalized)
    embedder = spec.load(kind)
    names = (name for name in (model.encoder, model.head) if name is not None)
    who = f"the model {' with '.join(map(str, names))}"
    index.origin.check_same(embedder.weights, who, encoder=embedder.fingerprint)
    return Query(_single(embedder.posterior(raw)), about, embedder.kappa_pos)


def _raw_query(
    query: QueryOptions, model: ModelOptions
) -> tuple[str, au.scale.Modality | None, Any]:
    """(A description, the modality, the input) of a query; without modality, its table has mu and kappa."""
    if query.text is not None:
        text = au.encoders.check_text(query.text)  # before a model is loaded
        return f"text {text[:60]!r}", "text", text
    if query.image is not None:
        au.data.read_rgb(query.image)  # raises before a model is loaded
        return f"picture {query.image}", "image", query.image
    assert query.vector_from is not None  # the options were checked
    path, row = query.vector_from, query.row or 0
    about = f"row {row} of {path}"
    column = model.text_column or model.image_column
    if column is not None:
        kind: Any = "text" if model.text_column else "image"
        return about, kind, au.data.pick_inputs(path, column, kind, [row])[row]
    if model.head is None:
        return about, None, None
    return about, "vector", au.data.pick_vector(path, model.vector_column, row)


def _row_posterior(path: Path, row: int, model: ModelOptions) -> au.VonMisesFisher:
    """The posterior in the columns of mu and kappa of a row."""
    mu = torch.from_numpy(au.data.pick_vector(path, model.mu_column, row).copy())
    kappa = au.data.pick_rows(path, model.kappa_column, [row])[row]
    if not isinstance(kappa, int | float):
        got = str(kappa)[:60]
        raise InvalidInputError(f"kappa must be a number, but row {row} of {path} has {got!r}.")
    return au.VonMisesFisher(mu, torch.tensor(float(kappa)))


def _single(
    posterior: au.VonMisesFisher | au.MixtureVMF,
) -> au.VonMisesFisher | au.MixtureVMF:
    """The only posterior of a batch of one."""
    if isinstance(posterior, au.MixtureVMF):
        parts = (posterior.weights[0], posterior.mu[0], posterior.kappa[0])
        return au.MixtureVMF(*(part.clone() for part in parts), validate_args=False)
    return au.VonMisesFisher(
        posterior.mu[0].clone(), posterior.kappa[0].clone(), validate_args=False
    )


def service_query(query: QueryOptions, model: ModelOptions) -> dict[str, Any]:
    """A query as arguments of ``Client.search`` and ``Client.match``."""
    asked: dict[str, Any] = {"id": query.item, "text": query.text, "image": query.image}
    if query.vector_from is not None:
        path, row, column = query.vector_from, query.row or 0, model.vector_column
        if column is None:
            asked["posterior"] = _row_posterior(path, row, model)
        else:
            asked["vector"] = au.data.pick_vector(path, column, row)
    return asked


def ask_service(
    url: str, query: QueryOptions, model: ModelOptions, cap: CapOptions, results: ResultOptions
) -> Answer:
    """The answer of the service at a URL; its API key comes from the environment."""
    with au.serve.Client(url, key=os.environ.get(KEY)) as client:
        about = client.about()
        schema = au.retrieval.Schema(about["dim"], about["columns"])
        answer = client.search(
            **service_query(query, model),
            filter=au.retrieval.parse_filter(results.filters or [], schema),
            limit=results.limit or _MAX_SERVED,
            mass=cap.mass,
            kind=cap.kind,
            prior=results.prior,
            rank=results.rank,
            guarantee=cap.guarantee or "model",
            widest=cap.widest,
            exact=results.exact,
            explain=results.explain,
        )
    # the query's direction is not shown, so any will do
    axis = torch.eye(schema.dim)[0]
    posterior = au.VonMisesFisher(axis, torch.tensor(answer.kappa), validate_args=False)
    why = au.retrieval.explain_hits(answer.hits, posterior, latent=False)
    if answer.latent_in_cap is not None:
        chance = torch.tensor(answer.latent_in_cap, dtype=torch.float64)
        why = au.retrieval.Explanation(why.degrees, why.cap_degrees, chance)
    notes = []
    if answer.truncated and results.limit is None:
        count = f"{'' if answer.count_exact else 'at least '}{answer.count:,}"
        notes.append(f"a service returns at most {_MAX_SERVED:,} hits; the cap has {count}.")
    shown = {**answer.cap, "conformal": cap.guarantee is not None}
    return Answer(Query(posterior, answer.about), answer.hits, why, shown, notes)


def short_value(value: Any) -> str:
    """A value of the gallery for a table: printable, at most 40 characters, and shortened between words."""
    text = printable(f"{value:g}" if isinstance(value, float) else str(value))
    if len(text) <= _WIDTH:
        return text
    words, _, _ = text[: _WIDTH - 1].rpartition(" ")
    return f"{words} …" if words.strip() else f"{text[: _WIDTH - 1]}…"
