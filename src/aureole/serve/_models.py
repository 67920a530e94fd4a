"""What may be asked and what is answered, as types: checked on the way in, and described in /openapi.json."""

from typing import Annotated, Any, Literal

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
)

_MOST_NUMBERS = 16_384
_MOST_TEXT = 100_000
_MOST_IMAGE = 64 * 2**20
_MOST_INPUTS = 256

Number = Annotated[float, Field(strict=True), AllowInfNan(False)]
Vector = Annotated[list[Number], Field(min_length=2, max_length=_MOST_NUMBERS)]
Text = Annotated[StrictStr, Field(min_length=1, max_length=_MOST_TEXT)]
Image = Annotated[
    StrictStr, Field(min_length=4, max_length=_MOST_IMAGE, description="A picture file in base64.")
]
Scalar = StrictBool | StrictInt | Annotated[StrictFloat, AllowInfNan(False)] | StrictStr


class Asked(BaseModel):
    """A request: unknown fields are refused, since a misspelt option would be passed over in silence."""

    model_config = ConfigDict(extra="forbid")


class View(Asked):
    """How a picture is spoilt before it is embedded, at the 32 pixels of the encoder."""

    crop: Annotated[
        Number, Field(ge=1 / 32, le=1, description="The share of the side kept, in the middle.")
    ] = 1.0
    blur: Annotated[
        Number, Field(ge=0, le=16, description="Sigma of a Gaussian blur, in pixels of the 32.")
    ] = 0.0


class ById(Asked):
    """An item of the gallery; it is left out of its own results."""

    id: Annotated[StrictStr, Field(min_length=1, max_length=1024)]


class ByText(Asked):
    """A text, for a service with an encoder of texts."""

    text: Text


class ByImage(Asked):
    """A picture, for a service with an encoder of pictures."""

    image: Image
    view: View | None = None


class ByVector(Asked):
    """A vector of another encoder, for a service with a head on such vectors."""

    vector: Vector


class ByPosterior(Asked):
    """A posterior itself."""

    mu: Annotated[Vector, Field(description="A direction of norm 1.")]
    kappa: Annotated[Number, Field(ge=0)]


class Texts(Asked):
    """Several texts."""

    texts: Annotated[list[Text], Field(min_length=1, max_length=_MOST_INPUTS)]


class Images(Asked):
    """Several pictures."""

    images: Annotated[list[Image], Field(min_length=1, max_length=_MOST_INPUTS)]
    view: View | None = None


class Vectors(Asked):
    """Several vectors."""

    vectors: Annotated[list[Vector], Field(min_length=1, max_length=_MOST_INPUTS)]


def _first_of(*names: str) -> Any:
    """A discriminator: the first of some fields that a value has."""

    def found(value: Any) -> str | None:
        here = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        return next((name for name in names if name in here), None)

    wanted = ", ".join(names)
    return Discriminator(
        found, custom_error_type="one_of", custom_error_message=f"give one of: {wanted}"
    )


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


class Range(Asked):
    """From low to high, both included; an end that is null is open."""

    low: Scalar | None = None
    high: Scalar | None = None


Mass = Annotated[Number, Field(ge=0, le=1, description="How much the cap holds.")]
Demand = Scalar | Annotated[list[Scalar], Field(max_length=1000)] | Range


class SearchRequest(Asked):
    """A query and what its cap is."""

    query: Query
    mass: Mass = 0.95
    kind: Annotated[
        Literal["credible", "predictive"] | None,
        Field(description="By default credible, and predictive with the conformal guarantee."),
    ] = None
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = 100
    rank: Literal["cosine", "positivity"] = "cosine"
    filter: Annotated[
        dict[str, Demand] | None,
        Field(max_length=64, description='{"shop": "north", "size": [1, 2], "price": {"low": 10}}'),
    ] = None
    guarantee: Literal["model", "conformal"] = "model"
    prior: Annotated[Number, Field(ge=0, le=1)] | None = None
    widest: Annotated[
        Number | None,
        Field(ge=0, le=180, description="Degrees: a query with a wider cap gets abstain, no hits."),
    ] = None
    explain: StrictBool = False
    exact: Annotated[StrictBool, Field(description="Pass by an approximate index.")] = False
    count: Annotated[
        StrictBool, Field(description="Count the members beyond the limit, to 10,000.")
    ] = True


class MapRequest(Asked):
    """A query whose surroundings are drawn."""

    query: Query
    mass: Mass = 0.95
    kind: Annotated[
        Literal["credible", "predictive"],
        Field(description="Whose cap is drawn: the query's latent, or a partner's direction."),
    ] = "credible"
    limit: Annotated[StrictInt, Field(ge=1, le=1000)] = 200
    dims: Literal[2, 3] = 2


class Error(BaseModel):
    """What went wrong."""

    code: str
    message: str
    field: str | None


class ErrorAnswer(BaseModel):
    """The body of every answer that is not 2xx or 304."""

    error: Error


class Item(BaseModel):
    """An item of the gallery; a kappa that is infinite is null."""

    id: str
    kappa: float | None
    label: Any = None
    text: str | None
    picture: str | None
    payload: dict[str, Any]


class Cap(BaseModel):
    """The least cosine of the credible cap of a mass."""

    mass: float
    cosine: float


class ItemAnswer(Item):
    """An item with its posterior; ``kappa_rank`` is the share of items less certain."""

    mu: list[float]
    kappa_rank: float
    caps: list[Cap]


class ItemsAnswer(BaseModel):
    """A page of items."""

    items: list[Item]
    total: int
    offset: int


class PosteriorAnswer(BaseModel):
    """A posterior; the credible cosines by their mass."""

    mu: list[float]
    kappa: float | None
    kappa_rank: float
    credible_cosine: dict[str, float]


class EmbedAnswer(BaseModel):
    """The posteriors of the inputs, in their order."""

    posteriors: list[PosteriorAnswer]


class QueryAnswer(BaseModel):
    """The query as it was understood."""

    kappa: float | None
    kappa_rank: float
    about: str


class Hit(Item):
    """An item in the cap: its cosine, log S h, P(positive), and with ``explain`` why it is there."""

    cosine: float
    positivity: float | None
    positive: float | None
    latent_in_cap: float | None = None
    explanation: str | None = None


class CapAnswer(BaseModel):
    """What the cap is: with the conformal guarantee ``level`` is the mass that ``pairs`` held-out pairs ask for."""

    kind: str
    mass: float
    level: float
    pairs: int | None
    kappa_pos: float | None
    kappa_other: float | None


class Class(BaseModel):
    """A label and how many items have it."""

    label: Any = None
    count: int


class SearchAnswer(BaseModel):
    """The cap's members; ``count`` is that before the limit, a lower bound where ``count_exact`` is false.

    ``classes`` are the ten most frequent labels of all members that were counted. ``class_entropy`` is that of the hits
    given here alone, in nats, each weighed by its positivity: how mixed the best of them are.
    """

    query: QueryAnswer
    cap: CapAnswer
    threshold: float | None
    count: int
    count_exact: bool
    truncated: bool
    abstain: bool
    class_entropy: float | None
    classes: list[Class] | None
    hits: list[Hit]


class Point(BaseModel):
    """An item on the map."""

    id: str
    label: Any = None
    text: str | None
    picture: str | None
    x: float
    y: float
    z: float | None = None
    cosine: float
    inside: bool
    kappa: float | None


class Circle(BaseModel):
    """The cap on the map."""

    radius: float


class MapAnswer(BaseModel):
    """The surroundings of a query: distances from the middle are angles in radians.

    ``cap`` is that of the mass asked for, ``caps`` are those of all masses from 0.5 to 0.99.
    """

    points: list[Point]
    cap: Circle
    caps: list[Cap]
    query: QueryAnswer


class CurvePoint(BaseModel):
    """A point of the rejection curve."""

    threshold: float
    kept: float
    score: float


class RejectionAnswer(BaseModel):
    """The rejection curve of a sample; not available while it is computed, and without labels."""

    available: bool
    curve: list[CurvePoint]


class Kappas(BaseModel):
    """(Share, kappa) of 101 quantiles, and the median."""

    quantiles: list[tuple[float, float | None]]
    median: float | None


class AboutAnswer(BaseModel):
    """What is served."""

    rows: int
    dim: int
    engine: str
    modality: Literal["image", "text", "vector"] | None
    kappa_pos: float | None
    columns: dict[str, str]
    label_column: str | None
    text_column: str | None
    pictures: bool
    kappa: Kappas
    classes: list[Class]
    conformal: bool
    version: str


class HealthAnswer(BaseModel):
    """Whether requests are taken."""

    status: str
