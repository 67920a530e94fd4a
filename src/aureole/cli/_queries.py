"""Queries of ``aureole search``: an item, a row of a table, a text or a picture as a posterior."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from aureole.cli._options import KEY, KappaPos, Normalized, OptionalHead, option
from aureole.data import pick_rows, pick_vector
from aureole.distributions import MixtureVMF, VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models import WEIGHTS, CifarResNet, PosteriorEncoder, ResNet18
from aureole.records import file_hash
from aureole.retrieval import CredibleIndex, Explanation, Hits, Schema, explain_hits, parse_filter
from aureole.scale import load_embedder, prepare_picture, prepare_text
from aureole.serve import Client
from aureole.training import FrozenHead

_MAX_SERVED = 1000  # hits that a service returns at most


@dataclass(frozen=True)
class QueryOptions:
    """The query: exactly one of an id, a row of a table, a text or a picture."""

    item: str | None = option("Query with an item of the gallery.", None, "--id")
    vector_from: Path | None = option(
        "Query with a row of this table: a vector with --head, or mu and kappa."
    )
    row: int | None = option("Row number, from 0.", min=0)
    text: str | None = option("Query with a text, encoded by MiniLM and --head, or by --encoder.")
    image: Path | None = option("Query with a picture, encoded by --encoder.")


@dataclass(frozen=True)
class ModelOptions:
    """The model of the query, or the columns of its table."""

    head: OptionalHead = None
    encoder: Path | None = option("Folder of a saved PosteriorEncoder or pipeline.")
    normalized: Normalized = None
    vector_column: str | None = option("With --head: column of vectors.")
    mu_column: str = option("Without --head: column of mu.", "mu")
    kappa_column: str = option("Without --head: column of kappa.", "kappa")


@dataclass(frozen=True)
class CapOptions:
    """The cap, which decides how many items are results."""

    mass: float = option("Probability mass of the cap, between 0 and 1.", 0.95)
    kind: Literal["credible", "predictive"] | None = option(
        "What the cap covers: the query's own latent (default), or the mu of positives."
    )
    kappa_pos: KappaPos = None
    guarantee: Literal["conformal"] | None = option(
        "Guarantee the coverage of the predictive cap by the calibration."
    )
    widest: float | None = option("Degrees: abstain if the cap is wider than this.", min=0, max=180)

    @property
    def kind_used(self) -> Literal["credible", "predictive"]:
        """The kind of the cap: credible, or predictive where a guarantee is requested."""
        return self.kind or ("predictive" if self.guarantee else "credible")


@dataclass(frozen=True)
class ResultOptions:
    """Which results to return, and in which order."""

    limit: int | None = option("Maximum number of results.", min=1)
    prior: float | None = option(
        "Share of positives among all items, for P(positive).", min=0, max=1
    )
    rank: Literal["cosine", "positivity"] = option("Order of the results.", "cosine")
    filters: list[str] | None = option(
        "Condition on a payload column; repeatable.",
        None,
        "--filter",
        metavar="COL=VALUE|A,B|LOW..HIGH",
    )
    exact: bool = option("Do not use an approximate index.", False, "--exact")


@dataclass(frozen=True)
class Query:
    """A posterior of batch shape (), a description, and the kappa_pos of the model that produced it, if known."""

    posterior: VonMisesFisher | MixtureVMF
    about: str
    kappa_pos: float | None = None
    item: str | None = None


@dataclass(frozen=True)
class Answer:
    """The result of a search: the query, the hits, their explanation, the cap, and warnings."""

    query: Query
    hits: Hits
    why: Explanation
    cap: dict[str, Any]
    notes: list[str]


def build_query(index: CredibleIndex, query: QueryOptions, model: ModelOptions) -> Query:
    """The posterior of a query to a gallery."""
    if query.item is not None:
        stored, _ = index.fetch([query.item])
        return Query(_single(stored), f"item {query.item[:60]!r}", item=query.item)
    if query.vector_from is not None:
        path, row = query.vector_from, query.row or 0
        about = f"row {row} of {path}"
        if model.head is None:
            return Query(_row_posterior(path, row, model), about)
        vector = pick_vector(path, model.vector_column, row)[None]
        head = FrozenHead.load(model.head)
        _check_weights(index, model.head / WEIGHTS)
        return Query(_single(head.predict(vector)), about, head.kappa_pos_)
    folder = model.encoder or model.head
    assert folder is not None  # the options were checked
    if query.image is not None:
        return _image_query(index, query.image, folder)
    text = prepare_text(query.text)  # checked before a model is loaded
    embedder = load_embedder(folder, "text", normalized=model.normalized)
    index.origin.check_same(embedder.weights, f"the model in {folder}")
    return Query(_single(embedder([text])), f"text {text[:60]!r}", embedder.kappa_pos)


def _row_posterior(path: Path, row: int, model: ModelOptions) -> VonMisesFisher:
    """The posterior in the columns of mu and kappa of a row."""
    mu = torch.from_numpy(pick_vector(path, model.mu_column, row).copy())
    kappa = pick_rows(path, model.kappa_column, [row])[row]
    if not isinstance(kappa, int | float):
        got = str(kappa)[:60]
        raise InvalidInputError(f"kappa must be a number, but row {row} of {path} has {got!r}.")
    return VonMisesFisher(mu, torch.tensor(float(kappa)))


def _image_query(index: CredibleIndex, path: Path, folder: Path) -> Query:
    """The posterior of the central square of a picture, by a saved encoder."""
    encoder = PosteriorEncoder.load(folder)
    if not isinstance(encoder.backbone, CifarResNet | ResNet18):
        raise InvalidInputError(
            f"the encoder in {folder} has the backbone {type(encoder.backbone).__name__}, but only CifarResNet and "
            "ResNet18 take pictures. For other encoders, write mu and kappa to a table and use --vector-from."
        )
    _check_weights(index, folder / WEIGHTS)
    with torch.inference_mode():
        posterior = encoder(prepare_picture(path).unsqueeze(0))
    return Query(_single(posterior), f"picture {path}", encoder.card.kappa_pos)


def _check_weights(index: CredibleIndex, weights: Path) -> None:
    """Raise if the gallery is known to come from another model."""
    index.origin.check_same(file_hash(weights), f"the model in {weights.parent}")


def _single(posterior: VonMisesFisher | MixtureVMF) -> VonMisesFisher | MixtureVMF:
    """The only posterior of a batch of one."""
    if isinstance(posterior, MixtureVMF):
        parts = (posterior.weights[0], posterior.mu[0], posterior.kappa[0])
        return MixtureVMF(*(part.clone() for part in parts), validate_args=False)
    return VonMisesFisher(posterior.mu[0].clone(), posterior.kappa[0].clone(), validate_args=False)


def ask_service(
    url: str,
    query: QueryOptions,
    model: ModelOptions,
    cap: CapOptions,
    results: ResultOptions,
    *,
    explain: bool,
) -> Answer:
    """The answer of the service at a URL; its API key comes from the environment."""
    asked: dict[str, Any] = {"id": query.item, "text": query.text, "image": query.image}
    with Client(url, key=os.environ.get(KEY)) as client:
        about = client.about()
        schema = Schema(about["dim"], about["columns"])
        if query.vector_from is not None:
            path, row, column = query.vector_from, query.row or 0, model.vector_column
            if column is None:
                asked["posterior"] = _row_posterior(path, row, model)
            else:
                asked["vector"] = pick_vector(path, column, row)
        answer = client.search(
            **asked,
            filter=parse_filter(results.filters or [], schema),
            limit=results.limit or _MAX_SERVED,
            mass=cap.mass,
            kind=cap.kind_used,
            prior=results.prior,
            rank=results.rank,
            guarantee=cap.guarantee or "model",
            widest=cap.widest,
            exact=results.exact,
            explain=explain,
        )
    # the query's direction is not shown, so any will do
    axis = torch.eye(schema.dim)[0]
    posterior = VonMisesFisher(axis, torch.tensor(answer.kappa), validate_args=False)
    why = explain_hits(answer.hits, posterior, latent=False)
    if answer.latent_in_cap is not None:
        chance = torch.tensor(answer.latent_in_cap, dtype=torch.float64)
        why = Explanation(why.degrees, why.cap_degrees, chance)
    notes = []
    if answer.truncated and results.limit is None:
        count = f"{'' if answer.count_exact else 'at least '}{answer.count:,}"
        notes.append(f"a service returns at most {_MAX_SERVED:,} hits; the cap has {count}.")
    shown = {**answer.cap, "conformal": cap.guarantee is not None}
    return Answer(Query(posterior, answer.about), answer.hits, why, shown, notes)
