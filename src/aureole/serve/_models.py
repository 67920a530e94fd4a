"""The JSON of requests, validated by pydantic, and of responses, as described in /openapi.json.

Routes that only the explorer's page uses answer with what ``aureole.explorer`` returns, without a model here.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    AllowInfNan,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    model_validator,
)

_MAX_INPUTS = 256
_MAX_FIELDS = 64

Number = Annotated[float, Field(strict=True), AllowInfNan(False)]
# fail_fast: one wrong entry is reported, not each of a million
Vector = Annotated[list[Number], Field(min_length=2, max_length=16_384, fail_fast=True)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=100_000)]
Image = Annotated[
    StrictStr, Field(min_length=4, max_length=2**24, description="A base64-encoded picture file.")
]
Kappa = Annotated[Number, Field(ge=0)]
_SEVERAL = Field(min_length=1, max_length=_MAX_INPUTS, fail_fast=True)
Texts = Annotated[list[Text], _SEVERAL]
Images = Annotated[list[Image], _SEVERAL]
Vectors = Annotated[list[Vector], _SEVERAL]
Id = Annotated[StrictStr, Field(min_length=1, max_length=1024)]
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


def _exactly_one(*names: str) -> Any:
    """A validator: one of these fields is given, and only one."""

    def check(self: Any) -> Any:
        if sum(getattr(self, name) is not None for name in names) != 1:
            raise ValueError(f"exactly one of these is required: {', '.join(names)}")
        return self

    return model_validator(mode="after")(check)


class Posterior(RequestModel):
    """A posterior."""

    mu: Annotated[Vector, Field(description="A unit vector.")]
    kappa: Kappa


class Query(RequestModel):
    """An item, which is excluded from its own results, an input of the encoder, or a posterior (mu and kappa)."""

    id: Id | None = None
    text: Text | None = None
    image: Image | None = None
    vector: Annotated[Vector | None, Field(description="Of another encoder.")] = None
    mu: Annotated[Vector | None, Field(description="A unit vector.")] = None
    kappa: Kappa | None = None
    _one = _exactly_one("id", "text", "image", "vector", "mu")

    @model_validator(mode="after")
    def _has_kappa(self) -> "Query":
        if (self.mu is None) != (self.kappa is None):
            raise ValueError("mu and kappa are needed together")
        return self


class EmbedRequest(RequestModel):
    """An input of the encoder, or several of one kind."""

    text: Text | None = None
    image: Image | None = None
    vector: Vector | None = None
    texts: Texts | None = None
    images: Images | None = None
    vectors: Vectors | None = None
    _one = _exactly_one("text", "image", "vector", "texts", "images", "vectors")


class Inputs(RequestModel):
    """Inputs of the encoder of one kind, or posteriors."""

    texts: Texts | None = None
    images: Images | None = None
    vectors: Vectors | None = None
    posteriors: Annotated[list[Posterior], Field(min_length=1, max_length=_MAX_INPUTS)] | None = (
        None
    )
    _one = _exactly_one("texts", "images", "vectors", "posteriors")


class UpsertRequest(RequestModel):
    """Items to store, with an id each; those whose id exists are replaced."""

    ids: Annotated[list[Id], _SEVERAL]
    items: Inputs
    payload: Annotated[
        dict[str, Annotated[list[Scalar], Field(max_length=_MAX_INPUTS, fail_fast=True)]],
        Field(max_length=64, description="The values of each payload column."),
    ] = {}


class Range(RequestModel):
    """From low to high, both inclusive; null means unbounded."""

    low: Scalar | None = None
    high: Scalar | None = None


Mass = Annotated[Number, Field(ge=0, le=1, description="Probability mass of the cap.")]
Kind = Annotated[
    Literal["credible", "predictive"] | None,
    Field(
        description="Of the query's latent, or of a matching item's direction (default if kappa_pos is known)."
    ),
]
Condition = Scalar | Annotated[list[Scalar], Field(max_length=1000, fail_fast=True)] | Range
Filter = Annotated[
    dict[str, Condition] | None,
    Field(max_length=64, description='{"shop": "north", "size": [1, 2], "price": {"low": 10}}'),
]


class SearchRequest(RequestModel):
    """A query, its cap, and options of the search."""

    query: Query
    mass: Mass = 0.95
    kind: Kind = None
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = 100
    rank: Literal["cosine", "positivity"] = "cosine"
    filter: Filter = None
    guarantee: Literal["model", "conformal"] = "model"
    prior: Annotated[Number, Field(ge=0, le=1)] | None = None
    explain: StrictBool = False
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


class MapRequest(RequestModel):
    """A query whose neighbourhood is drawn."""

    query: Query
    mass: Mass = 0.95
    kind: Kind = None
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = 200


RowNumber = Annotated[StrictInt, Field(ge=0, le=2**32)]


class TableRowsRequest(RequestModel):
    """Row numbers of items: the order of kappa, from 0 on."""

    rows: Annotated[list[RowNumber], Field(max_length=500, fail_fast=True)]


class TableIdsRequest(RequestModel):
    """Row numbers of items whose ids to return."""

    rows: Annotated[list[RowNumber], Field(max_length=10_000, fail_fast=True)]
    version: Annotated[
        StrictStr | None,
        Field(max_length=64, description="Version of the table; a 409 if it has changed."),
    ] = None


class Error(BaseModel):
    """What went wrong."""

    code: str
    message: str
    field: str | None


class ErrorAnswer(BaseModel):
    """The body of every response that is not 2xx or 304."""

    error: Error


class Item(BaseModel):
    """An item of the gallery; an infinite kappa is null."""

    id: str
    kappa: float | None
    label: Any = None
    text: str | None
    picture: str | None
    payload: dict[str, Any]


class Cap(BaseModel):
    """The smallest cosine inside the cap of a mass."""

    mass: float
    cosine: float


class ItemAnswer(Item):
    """An item with its posterior; ``kappa_rank`` is the fraction of items with a smaller kappa."""

    mu: list[float]
    kappa_rank: float
    caps: list[Cap]


class ItemsAnswer(BaseModel):
    """A page of items."""

    items: list[Item]
    total: int
    offset: int


class QueryAnswer(BaseModel):
    """The concentration of a query, and the fraction of items with a smaller one."""

    kappa: float | None
    kappa_rank: float


class PosteriorAnswer(QueryAnswer):
    """The posterior of an input."""

    mu: list[float]


class EmbedAnswer(BaseModel):
    """The posteriors of the inputs, in input order."""

    posteriors: list[PosteriorAnswer]


class Hit(Item):
    """An item inside the cap: its cosine, log S h, P(positive), and with ``explain`` the reason it is a hit."""

    cosine: float
    positivity: float | None
    positive: float | None
    explanation: str | None = None


class Class(BaseModel):
    """A label and the number of items that have it."""

    label: Any = None
    count: int


class SearchAnswer(BaseModel):
    """The items inside the cap; ``count`` ignores the limit and is a lower bound if ``count_exact`` is false.

    ``classes`` lists the ten most frequent labels of all counted items. ``class_entropy`` is the label entropy, in
    nats, of the returned hits, weighted by their positivity.
    """

    query: QueryAnswer
    threshold: float | None
    count: int
    count_exact: bool
    truncated: bool
    class_entropy: float | None
    classes: list[Class] | None
    hits: list[Hit]


class Match(Item):
    """An item with the probability that it matches the query."""

    probability: float
    cosine: float


class MatchAnswer(BaseModel):
    """The likely matches, the most probable first; ``reason`` explains an empty list.

    ``p_value`` is the share of queries without a match whose highest cosine is at least as high. ``note`` says that the
    calibrator has too few held-out queries to guarantee the precision or recall that was asked for.
    """

    threshold: float
    p_value: float
    abstained: bool
    reason: str | None
    note: str | None
    matches: list[Match]
