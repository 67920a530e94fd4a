"""Response models: the JSON of every answer, as described in /openapi.json, and how hits and items become it."""

from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel

from aureole.caps import Hits, explain_hits
from aureole.caps._hits import times_more_likely
from aureole.distributions import VonMisesFisher
from aureole.explorer._neighbourhood_map import MASSES
from aureole.serve._pictures import Pictures


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
    """The smallest cosine inside the credible cap of a mass."""

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


class TableColumn(BaseModel):
    """A column: a number (with its smallest and largest finite value), a category (with its values), or a text."""

    name: str
    kind: Literal["number", "category", "text"]
    values: list[Any] | None = None
    low: float | None = None
    high: float | None = None


class TableMap(BaseModel):
    """Whether the gallery has a map, the columns ``map.x`` and ``map.y``; the method, or the reason why not."""

    available: bool
    method: str | None
    reason: str | None


class TableAnswer(BaseModel):
    """The table of all items, in the order of kappa, ties by id; the version changes when rows change."""

    version: str
    rows: int
    columns: list[TableColumn]
    map: TableMap


class TableRowsAnswer(BaseModel):
    """Items in the order of the requested rows; null for an item that was deleted meanwhile."""

    version: str
    items: list[Item | None]


class TableIdsAnswer(BaseModel):
    """The ids of the requested rows."""

    version: str
    ids: list[str]


class TableNumbersAnswer(BaseModel):
    """The row number of each id; null for an id that does not exist."""

    version: str
    rows: list[int | None]


class TableFindAnswer(BaseModel):
    """The numbers of the rows that were found, ascending: base64 of little-endian uint32."""

    version: str
    rows: str
    count: int
    truncated: bool


class QuestionSummary(BaseModel):
    """Whether a question has an answer, and how many items it found."""

    name: str
    available: bool
    reason: str | None
    count: int | None


class ConfusedClasses(BaseModel):
    """Two classes, the mean share of each in the caps of the other, and how many items are ambiguous between them."""

    classes: list[Any]
    codes: list[int]
    shares: list[float]
    count: int


class QuestionsAnswer(BaseModel):
    """Which questions have answers; ``stale`` means that the gallery has changed since they were computed."""

    available: bool
    reason: str | None
    stale: bool
    questions: list[QuestionSummary]
    confusions: list[ConfusedClasses]
    settings: dict[str, Any]


class AnswerEntry(BaseModel):
    """An item with its score; ``beyond``: an outlier that is farther from all others than the gallery explains."""

    row: int
    id: str
    score: float | None
    item: Item
    label: Any = None
    other: Any = None
    own_share: float | None = None
    other_share: float | None = None
    angle: float | None = None
    p_value: float | None = None
    beyond: bool | None = None


class QuestionAnswer(BaseModel):
    """A page of the items that a question found, the strongest first."""

    name: str
    total: int
    offset: int
    entries: list[AnswerEntry]


class UpsertAnswer(BaseModel):
    """How many items were stored, and how many of them replaced an item of the same id."""

    stored: int
    replaced: int


class DeleteAnswer(BaseModel):
    """How many items were deleted."""

    deleted: int


class PosteriorAnswer(BaseModel):
    """A posterior; ``credible_cosine`` maps masses to the smallest cosine inside the credible cap."""

    mu: list[float]
    kappa: float | None
    kappa_rank: float
    credible_cosine: dict[str, float]


class EmbedAnswer(BaseModel):
    """The posteriors of the inputs, in input order."""

    posteriors: list[PosteriorAnswer]


class QueryAnswer(BaseModel):
    """The query as the service understood it."""

    kappa: float | None
    kappa_rank: float
    about: str


class Hit(Item):
    """An item inside the cap: its cosine, log S h, P(positive), and with ``explain`` the reason it is a hit."""

    cosine: float
    positivity: float | None
    positive: float | None
    latent_in_cap: float | None = None
    explanation: str | None = None


class CapAnswer(BaseModel):
    """The cap; with the conformal guarantee ``level`` is the mass calibrated on ``pairs`` held-out pairs."""

    kind: str
    mass: float
    level: float
    pairs: int | None
    kappa_pos: float | None
    kappa_other: float | None


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
    cap: CapAnswer
    threshold: float | None
    count: int
    count_exact: bool
    truncated: bool
    abstain: bool
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

    query: QueryAnswer
    threshold: float
    p_value: float
    abstained: bool
    reason: str | None
    note: str | None
    count: int
    matches: list[Match]


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
    """The neighbourhood of a query: distances from the centre are angles in radians.

    ``cap`` is the cap of the requested mass, ``caps`` those of all masses from 0.5 to 0.99, and ``reach``
    the angle at the rim.
    """

    points: list[Point]
    cap: Circle
    caps: list[Cap]
    reach: float
    query: QueryAnswer


class CurvePoint(BaseModel):
    """A point of the rejection curve."""

    threshold: float
    kept: float
    score: float


class RejectionAnswer(BaseModel):
    """The rejection curve of a sample; not available while it is being computed, or without labels."""

    available: bool
    curve: list[CurvePoint]


class CoveragePoint(BaseModel):
    """The claimed mass, the measured share of held-out partners, and the mass that conformal caps use instead."""

    claimed: float
    measured: float
    level: float


class CalibrationAnswer(BaseModel):
    """The coverage of predictive caps on the pairs of the conformal calibration; not available without one."""

    available: bool
    pairs: int
    curve: list[CoveragePoint]


class Kappas(BaseModel):
    """101 quantiles of kappa as (fraction, kappa), and the median."""

    quantiles: list[tuple[float, float | None]]
    median: float | None


class CalibratorAnswer(BaseModel):
    """The calibrator of ``/v1/match``: its default threshold and limit, and its held-out queries."""

    threshold: float
    limit: int
    queries: int


class AboutAnswer(BaseModel):
    """The gallery and the encoder that are served."""

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
    calibrator: CalibratorAnswer | None
    prior: float
    version: str


class HealthAnswer(BaseModel):
    """Whether the process works."""

    status: str


class ReadyAnswer(BaseModel):
    """Whether the engine and the encoder answer; ``encoder`` is null without one."""

    status: str
    engine: str
    encoder: str | None


class ItemFormatter:
    """Makes the models of items and hits, with their picture, label and text."""

    def __init__(
        self, pictures: Pictures | None, label_column: str | None, text_column: str | None
    ) -> None:
        self._pictures = pictures
        self.label_column, self.text_column = label_column, text_column

    def fields(self, name: str, kappa: float, payload: dict[str, Any]) -> dict[str, Any]:
        """The fields of an item."""
        has_picture = self._pictures is not None and self._pictures.has(name)
        text = payload.get(self.text_column) if self.text_column else None
        return {
            "id": name,
            "kappa": kappa,
            "label": payload.get(self.label_column) if self.label_column else None,
            "text": None if text is None else str(text),
            "picture": f"/v1/pictures/{quote(name, safe='')}" if has_picture else None,
            "payload": payload,
        }

    def rows(
        self, ids: list[str], kappa: Any, payload: dict[str, list[Any]]
    ) -> list[dict[str, Any]]:
        """The fields of several items."""
        return [
            self.fields(name, value, {column: values[i] for column, values in payload.items()})
            for i, (name, value) in enumerate(zip(ids, kappa.tolist(), strict=True))
        ]

    def hits(self, hits: Hits) -> list[Hit]:
        """The hits of a search, with their scores."""
        empty = [None] * len(hits)
        positivity = empty if hits.log_positivity is None else hits.log_positivity.tolist()
        positive = empty if hits.probability is None else hits.probability.tolist()
        rows = self.rows(hits.ids, hits.kappa, hits.payload)
        return [
            Hit(**row, cosine=cosine, positivity=log_ratio, positive=probability)
            for row, cosine, log_ratio, probability in zip(
                rows, hits.cosine.tolist(), positivity, positive, strict=True
            )
        ]


def add_explanations(entries: list[Hit], hits: Hits, posterior: VonMisesFisher) -> None:
    """Add to each hit the reason it is in the set."""
    why = explain_hits(hits, posterior)
    latent = [None] * len(hits) if why.latent_in_cap is None else why.latent_in_cap.tolist()
    (cap,) = why.cap_degrees.tolist()
    for entry, angle, probability in zip(entries, why.degrees.tolist(), latent, strict=True):
        entry.latent_in_cap = probability
        entry.explanation = explanation(entry, angle, cap)


def explanation(hit: Hit, degrees: float, cap_degrees: float) -> str:
    r"""Return one sentence that explains why a hit is in the set.

    Examples
    --------
    >>> hit = Hit(id="a", kappa=50.0, text=None, picture=None, payload={}, cosine=0.98,
    ...     positivity=2.8, positive=None, latent_in_cap=0.93)
    >>> print(explanation(hit, 12.34, 20.0).replace("; ", ";\n"))
    12.3° from the query, inside its cap of 20.0°;
    its own latent (κ 50) lies in the cap with probability 0.93;
    16x more likely to match than a random item.
    """
    text = f"{degrees:.1f}° from the query, inside its cap of {cap_degrees:.1f}°"
    if hit.latent_in_cap is not None:
        own = f"its own latent (κ {hit.kappa:.4g})"
        text += f"; {own} lies in the cap with probability {hit.latent_in_cap:.2f}"
    if hit.positivity is not None:
        text += f"; {times_more_likely(hit.positivity)} to match than a random item"
    if hit.positive is not None:
        text += f", P(positive) {hit.positive:.3g}"
    return f"{text}."


def cap_entries(cosines: list[float]) -> list[Cap]:
    """The caps of the explorer's masses, from their smallest cosines."""
    return [Cap(mass=m, cosine=c) for m, c in zip(MASSES, cosines, strict=True)]
