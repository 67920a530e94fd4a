"""Queries of ``aureole search``: an item, a row of a table, a text or a picture as a posterior."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aureole as au
from aureole.cli._inputs import EncoderSpec
from aureole.cli._lazy import torch
from aureole.cli._options import KappaPos, Normalized, OptionalHead, option
from aureole.cli._output import printable
from aureole.errors import InvalidInputError

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


def build_query(index: au.CredibleIndex, query: QueryOptions, model: ModelOptions) -> Query:
    """Return the posterior of a query to a gallery; inputs are checked before a model is loaded."""
    column = model.text_column or model.image_column
    path, row = query.vector_from, query.row or 0
    kind: Any = "vector"
    if query.item is not None:
        stored, _ = index.fetch([query.item])
        return Query(_single(stored), f"item {query.item[:60]!r}", item=query.item)
    if query.text is not None:
        kind, raw = "text", au.encoders.check_text(query.text)
        about = f"text {query.text[:60]!r}"
    elif query.image is not None:
        au.data._image_files.read_rgb(query.image)
        kind, raw, about = "image", query.image, f"picture {query.image}"
    else:
        assert path is not None  # the options were checked
        about = f"row {row} of {path}"
        if column is not None:
            kind = "text" if model.text_column else "image"
            raw = au.data._tables.pick_inputs(path, column, kind, [row])[row]
        elif model.head is not None:
            raw = au.data._tables.pick_vector(path, model.vector_column, row)
        else:
            return Query(_row_posterior(path, row, model), about)
    embedder = au.embed.ModelSpec(model.encoder, model.head, model.normalized).load(kind)
    names = (str(name) for name in (model.encoder, model.head) if name is not None)
    who = f"the model {' with '.join(names)}"
    index.origin.check_same(embedder.weights, who, encoder=embedder.fingerprint)
    return Query(_single(embedder.posterior(raw)), about, embedder.kappa_pos)


def _row_posterior(path: Path, row: int, model: ModelOptions) -> au.VonMisesFisher:
    """Return the posterior in the columns of mu and kappa of a row."""
    mu = torch.from_numpy(au.data._tables.pick_vector(path, model.mu_column, row).copy())
    kappa = au.data._tables.pick_inputs(path, model.kappa_column, None, [row])[row]
    if not isinstance(kappa, int | float):
        got = str(kappa)[:60]
        raise InvalidInputError(f"kappa must be a number, but row {row} of {path} has {got!r}.")
    return au.VonMisesFisher(mu, torch.tensor(float(kappa)))


def _single(posterior: au.VonMisesFisher | au.MixtureVMF) -> au.VonMisesFisher | au.MixtureVMF:
    """Return the only posterior of a batch of one."""
    parts = [posterior.mu[0].clone(), posterior.kappa[0].clone()]
    if isinstance(posterior, au.MixtureVMF):
        return au.MixtureVMF(posterior.weights[0].clone(), *parts, validate_args=False)
    return au.VonMisesFisher(*parts, validate_args=False)


def short_value(value: Any) -> str:
    """Return a value of the gallery for a table: printable, at most 40 characters, shortened between words."""
    text = printable(f"{value:g}" if isinstance(value, float) else str(value))
    if len(text) <= _WIDTH:
        return text
    words, _, _ = text[: _WIDTH - 1].rpartition(" ")
    return f"{words} …" if words.strip() else f"{text[: _WIDTH - 1]}…"
