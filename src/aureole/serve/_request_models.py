"""Request models: the JSON that each route accepts, validated by pydantic, and its translation for the engine."""

import math
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import (
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    Tag,
    model_validator,
)

from aureole.caps import SearchOptions
from aureole.caps._caps import cap_kind
from aureole.distributions import VonMisesFisher
from aureole.serve._batching import SearchPlan
from aureole.serve._errors import ApiError
from aureole.serve._workers import BLUR_UNITS

_MAX_NUMBERS = 16_384
_MAX_TEXT = 100_000
_MAX_IMAGE = 2**24
_MAX_INPUTS = 256
_MAX_FIELDS = 64

Number = Annotated[float, Field(strict=True), AllowInfNan(False)]
# fail_fast: one wrong entry is reported, not each of a million
Vector = Annotated[list[Number], Field(min_length=2, max_length=_MAX_NUMBERS, fail_fast=True)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=_MAX_TEXT)]
Image = Annotated[
    StrictStr,
    Field(min_length=4, max_length=_MAX_IMAGE, description="A base64-encoded picture file."),
]
Scalar = StrictBool | StrictInt | Annotated[StrictFloat, AllowInfNan(False)] | StrictStr


class RequestModel(BaseModel):
    """Base of all requests; unknown fields are rejected, so that a misspelt option is not silently ignored."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _limit_fields(cls, value: Any) -> Any:
        """Refuse many unknown fields at once: each would cost an error of its own."""
        if isinstance(value, dict) and len(value) > _MAX_FIELDS:
            raise ValueError(f"an object here has at most {_MAX_FIELDS} fields")
        return value


class View(RequestModel):
    """Degrades the central square of a picture before it is embedded, at the encoder's resolution."""

    crop: Annotated[
        Number, Field(ge=1 / 32, le=1, description="Fraction of each side kept by a centre crop.")
    ] = 1.0
    blur: Annotated[
        Number,
        Field(ge=0, le=16, description=f"Sigma of a Gaussian blur, in 1/{BLUR_UNITS} of the side."),
    ] = 0.0


class ById(RequestModel):
    """An item of the gallery; it is excluded from its own results."""

    id: Annotated[StrictStr, Field(min_length=1, max_length=1024)]


class ByText(RequestModel):
    """A text, if the service has a text encoder."""

    text: Text


class ByImage(RequestModel):
    """A picture, if the service has an image encoder."""

    image: Image
    view: View | None = None


class ByVector(RequestModel):
    """A vector of another encoder, if the service has a head for such vectors."""

    vector: Vector


class ByPosterior(RequestModel):
    """A posterior, given by mu and kappa."""

    mu: Annotated[Vector, Field(description="A unit vector.")]
    kappa: Annotated[Number, Field(ge=0)]


class Texts(RequestModel):
    """Several texts."""

    texts: Annotated[list[Text], Field(min_length=1, max_length=_MAX_INPUTS, fail_fast=True)]


class Images(RequestModel):
    """Several pictures."""

    images: Annotated[list[Image], Field(min_length=1, max_length=_MAX_INPUTS, fail_fast=True)]
    view: View | None = None


class Vectors(RequestModel):
    """Several vectors."""

    vectors: Annotated[list[Vector], Field(min_length=1, max_length=_MAX_INPUTS, fail_fast=True)]


def _first_of(*names: str) -> Any:
    """A discriminator: the first of these fields that a value has."""

    def tag(value: Any) -> str | None:
        fields = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        return next((name for name in names if name in fields), None)

    message = f"exactly one of these is required: {', '.join(names)}"
    return Discriminator(tag, custom_error_type="one_of", custom_error_message=message)


Query = Annotated[
    Annotated[ById, Tag("id")]
    | Annotated[ByText, Tag("text")]
    | Annotated[ByImage, Tag("image")]
    | Annotated[ByVector, Tag("vector")]
    | Annotated[ByPosterior, Tag("mu")],
    _first_of("id", "text", "image", "vector", "mu"),
]
EmbedRequest = Annotated[
    Annotated[ByText, Tag("text")]
    | Annotated[ByImage, Tag("image")]
    | Annotated[ByVector, Tag("vector")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[Images, Tag("images")]
    | Annotated[Vectors, Tag("vectors")],
    _first_of("text", "image", "vector", "texts", "images", "vectors"),
]


class Posteriors(RequestModel):
    """Several posteriors."""

    posteriors: Annotated[list[ByPosterior], Field(min_length=1, max_length=_MAX_INPUTS)]


class UpsertRequest(RequestModel):
    """Items to store, with an id each; those whose id exists are replaced."""

    ids: Annotated[
        list[Annotated[StrictStr, Field(min_length=1, max_length=1024)]],
        Field(min_length=1, max_length=_MAX_INPUTS, fail_fast=True),
    ]
    items: Annotated[
        Annotated[Texts, Tag("texts")]
        | Annotated[Images, Tag("images")]
        | Annotated[Vectors, Tag("vectors")]
        | Annotated[Posteriors, Tag("posteriors")],
        _first_of("texts", "images", "vectors", "posteriors"),
    ]
    payload: Annotated[
        dict[str, Annotated[list[Scalar], Field(max_length=_MAX_INPUTS, fail_fast=True)]],
        Field(max_length=64, description="The values of each payload column."),
    ] = {}


class Range(RequestModel):
    """From low to high, both inclusive; null means unbounded."""

    low: Scalar | None = None
    high: Scalar | None = None


Mass = Annotated[Number, Field(ge=0, le=1, description="Probability mass of the cap.")]
Condition = Scalar | Annotated[list[Scalar], Field(max_length=1000, fail_fast=True)] | Range
Filter = Annotated[
    dict[str, Condition] | None,
    Field(max_length=64, description='{"shop": "north", "size": [1, 2], "price": {"low": 10}}'),
]


class SearchRequest(RequestModel):
    """A query, its cap, and options of the search."""

    query: Query
    mass: Mass = 0.95
    kind: Annotated[
        Literal["credible", "predictive"] | None,
        Field(description="Default: predictive if kappa_pos is known, else credible."),
    ] = None
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = 100
    rank: Literal["cosine", "positivity"] = "cosine"
    filter: Filter = None
    guarantee: Literal["model", "conformal"] = "model"
    prior: Annotated[Number, Field(ge=0, le=1)] | None = None
    widest: Annotated[
        Number | None,
        Field(
            ge=0, le=180, description="Degrees; a query with a wider cap gets abstain and no hits."
        ),
    ] = None
    explain: StrictBool = False
    exact: Annotated[StrictBool, Field(description="Bypass an approximate index.")] = False
    count: Annotated[
        StrictBool, Field(description="Count items beyond the limit, up to 10,000.")
    ] = True


class MatchRequest(RequestModel):
    """A query, and which items are its matches: at most one of threshold, precision and recall."""

    query: Query
    threshold: Annotated[
        Number | None,
        Field(
            ge=0, le=1, description="Smallest probability; default: best F1 on held-out queries."
        ),
    ] = None
    precision: Annotated[
        Number | None,
        Field(gt=0, lt=1, description="At least this share of all results are matches."),
    ] = None
    recall: Annotated[
        Number | None,
        Field(gt=0, lt=1, description="At least this share of a query's matches are returned."),
    ] = None
    limit: Annotated[
        StrictInt | None,
        Field(
            ge=1,
            le=1000,
            description="Default: the calibrator's, up to which precision holds; 1,000 with recall.",
        ),
    ] = None
    abstain: Annotated[
        Number | None,
        Field(ge=0, le=1, description="A query with a larger p-value gets no results."),
    ] = None
    filter: Filter = None
    exact: Annotated[StrictBool, Field(description="Bypass an approximate index.")] = False


class MapRequest(RequestModel):
    """A query whose neighbourhood is drawn."""

    query: Query
    mass: Mass = 0.95
    kind: Annotated[
        Literal["credible", "predictive"] | None,
        Field(
            description="Of a matching item's direction (default if kappa_pos is known), or of the query's latent."
        ),
    ] = None
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = 200
    dims: Literal[2, 3] = 2


RowNumber = Annotated[StrictInt, Field(ge=0, le=2**32)]
TableVersion = Annotated[
    StrictStr | None,
    Field(max_length=64, description="Version of the table; a 409 if it has changed."),
]


class TableRowsRequest(RequestModel):
    """Row numbers of items: the order of kappa, from 0 on."""

    rows: Annotated[list[RowNumber], Field(max_length=500, fail_fast=True)]


class TableIdsRequest(RequestModel):
    """Row numbers of items whose ids to return, at most as many as can be tagged at once."""

    rows: Annotated[list[RowNumber], Field(max_length=10_000, fail_fast=True)]
    version: TableVersion = None


class TableNumbersRequest(RequestModel):
    """Ids of items whose row numbers are wanted."""

    ids: Annotated[
        list[Annotated[StrictStr, Field(max_length=1024)]],
        Field(max_length=100_000, fail_fast=True),
    ]


def inputs_of(request: Any) -> tuple[str, list[Any], View | None]:
    """(Kind, inputs, view) of an embed request."""
    view = getattr(request, "view", None)
    for kind in ("text", "image", "vector"):
        if hasattr(request, kind):
            return kind, [getattr(request, kind)], view
        if hasattr(request, f"{kind}s"):
            return kind, list(getattr(request, f"{kind}s")), view
    raise AssertionError(f"unknown request type {type(request).__name__}")


def posterior_of(query: ByPosterior, dim: int) -> VonMisesFisher:
    """The posterior given by mu and kappa; mu must be a unit vector of dimension ``dim``."""
    mu = np.array(query.mu)  # numpy reads a list ten times as fast as torch
    norm, message = float(np.linalg.norm(mu)), None
    if len(mu) != dim:
        message = f"mu must have {dim} entries, the dimension of the gallery, but has {len(mu)}."
    elif not abs(norm - 1) <= 0.01:
        message = f"mu must have norm 1, but has norm {norm:.4g}."
    if message is not None:
        raise ApiError("invalid_input", message, field="query.mu")
    kappa = torch.from_numpy(np.array(query.kappa, np.float32))
    direction = torch.from_numpy((mu / norm).astype(np.float32))
    return VonMisesFisher(direction, kappa, validate_args=False)


def search_plan(
    request: SearchRequest,
    *,
    calibrated: bool,
    kappa_pos: float | None,
    label: str | None,
    columns: tuple[str, ...],
) -> SearchPlan:
    """The engine's plan for a search request; raises if the gallery does not support it."""
    guarantee = None if request.guarantee == "model" else request.guarantee
    if guarantee and not calibrated:
        raise ApiError(
            "invalid_input",
            "this gallery has no conformal calibration. Rebuild it with --group-column, the column that defines "
            "matching pairs, and --conformal TABLE, rows that the head was not trained on.",
            field="guarantee",
        )
    kind = cap_kind(request.kind, kappa_pos, guarantee)
    if guarantee and kind != "predictive":
        raise ApiError(
            "invalid_input",
            f"guarantee 'conformal' needs kind 'predictive', but kind is '{kind}'.",
            field="guarantee",
        )
    needs = request.rank == "positivity" or request.prior is not None or kind == "predictive"
    if needs and not guarantee:
        require_kappa_pos(kappa_pos)
    options = SearchOptions(
        kind=kind,
        kappa_pos=None if guarantee else kappa_pos,
        prior=request.prior,
        rank=request.rank,
        guarantee=guarantee,
        widest=None if request.widest is None else math.radians(request.widest),
    )
    return SearchPlan(
        request.mass,
        request.limit,
        options,
        filter=filter_of(request.filter),
        exact=request.exact,
        count=request.count,
        columns=columns,
        label=label,
    )


def filter_of(conditions: dict[str, Any] | None) -> dict[str, Any] | None:
    """The conditions of a request as the index takes them; None without any."""
    return {
        name: (condition.low, condition.high) if isinstance(condition, Range) else condition
        for name, condition in sorted((conditions or {}).items())
    } or None


def require_kappa_pos(kappa_pos: float | None) -> float:
    """``kappa_pos``; raises if it is unknown."""
    if kappa_pos is None:
        raise ApiError(
            "invalid_input",
            "positivity, P(positive) and predictive caps need kappa_pos, but neither the gallery nor the encoder "
            "defines it.",
        )
    return kappa_pos
