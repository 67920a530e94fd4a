"""``aureole search``: the items inside the cap of one query, or its probable matches."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

import aureole as au
from aureole.cli._lazy import rich, torch
from aureole.cli._options import AsJson, EncoderSpec, Gallery, OptionalHead, expanded, option
from aureole.cli._output import add_row, print_json, print_table, print_text, printable, table
from aureole.engines._addresses import shown_address
from aureole.errors import AureoleWarning, InvalidInputError

if TYPE_CHECKING:
    from aureole.match._gallery import GalleryMatches

HELP = r"""Search a gallery: the certainty of the query decides how many items are returned.

The query is an item of the gallery (left out of its own results), a row of a table, a text, or a picture. With
--calibrator, match probabilities decide instead of a cap, and with --abstain a query without a match returns nothing.

Examples:

    aureole search gallery.lance --id "shoe 17" --mass 0.9
    aureole search gallery.lance --vector-from queries.parquet --row 3 \
      --head head --filter price=10..20
    aureole search gallery.lance --text "red shoes" --head head \
      --encoder sentence-transformers:all-MiniLM-L6-v2 \
      --guarantee conformal --widest 60
    aureole search gallery.lance --image shoe.jpg --encoder encoder \
      --filter colour=red,blue --json
    aureole search gallery.lance --id "shoe 17" --calibrator calibrator \
      --precision 0.8 --abstain 0.05
"""
_SHOWN = 20  # hits in the text output without --limit
_WIDTH = 40  # characters of a value


@dataclass(frozen=True)
class QueryOptions:
    """The query: exactly one of an id, a row of a table, a text or a picture."""

    item: str | None = option("Query with an item of the gallery.", None, "--id")
    vector_from: Path | None = option(
        "Query with a row of this table: a vector with --head, or its columns mu and kappa."
    )
    row: int | None = option("Row number, from 0.", min=0)
    text: str | None = option(
        "Query with a text, encoded by --encoder and, if it gives vectors, --head."
    )
    image: Path | None = option("Query with a picture, encoded like a text.")


@dataclass(frozen=True)
class ModelOptions:
    """The model of the query."""

    head: OptionalHead = None
    encoder: EncoderSpec = None
    vector_column: str | None = option("With --head: column of vectors.")


@dataclass(frozen=True)
class CapOptions:
    """The cap, which decides how many items are results."""

    mass: float = option("Probability mass of the cap, between 0 and 1.", 0.95)
    kind: Literal["credible", "predictive"] | None = option(
        "What the cap answers: what matches the query (predictive, the default if kappa_pos is known), "
        "or what the query could be (credible)."
    )
    kappa_pos: float | None = option(
        "Concentration of positives around a latent (default: the gallery's).", min=0
    )
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
    filters: list[str] | None = option(
        "Condition on a payload column; repeatable.",
        None,
        "--filter",
        metavar="COL=VALUE|A,B|LOW..HIGH",
    )
    exact: bool = option("Do not use an approximate index.", False, "--exact")


@dataclass(frozen=True)
class MatchingOptions:
    """Match probabilities of a calibrator, instead of a cap."""

    calibrator: Path | None = option("Folder of a calibrator of this gallery; see `calibrate`.")
    threshold: float | None = option(
        "Smallest probability of a result (default: best F1 on held-out queries).", min=0, max=1
    )
    precision: float | None = option("Share of results that match, guaranteed.", min=0, max=1)
    recall: float | None = option("Share of matches that are returned, guaranteed.", min=0, max=1)
    abstain: float | None = option(
        "Return nothing if the p-value of a query without a match is above this.", min=0, max=1
    )

    @property
    def given(self) -> bool:
        """Return whether any of them is set."""
        return any(value is not None for value in vars(self).values())

    def check(self, cap: CapOptions) -> None:
        """Raise if these options contradict others."""
        if self.calibrator is None:
            raise typer.BadParameter(
                "--threshold, --precision, --recall and --abstain need --calibrator."
            )
        aims = (self.threshold, self.precision, self.recall)
        if sum(aim is not None for aim in aims) > 1:
            raise typer.BadParameter("use at most one of --threshold, --precision and --recall.")
        for name, entry in cap.__dataclass_fields__.items():
            if getattr(cap, name) != entry.default:
                raise typer.BadParameter(
                    f"--{name.replace('_', '-')} is for caps, not for match probabilities."
                )

    def aim(self) -> str:
        """Return how the threshold was chosen, in words."""
        for name in ("precision", "recall"):
            value = getattr(self, name)
            if value is not None:
                return f" for {name} {value:g}"
        return "" if self.threshold is not None else ", the best F1 on held-out queries"


@dataclass(frozen=True)
class Query:
    """A posterior of batch shape (), a description, and the kappa_pos of the model that produced it, if known."""

    posterior: au.VonMisesFisher | au.MixtureVMF
    about: str
    kappa_pos: float | None = None
    item: str | None = None


@expanded
def search(
    gallery: Gallery,
    query: QueryOptions,
    model: ModelOptions,
    cap: CapOptions,
    results: ResultOptions,
    matching: MatchingOptions,
    as_json: AsJson = False,
) -> None:
    """Search and print; ``HELP`` is the text users see."""
    _check_query(query, model)
    if not 0 <= cap.mass <= 1:
        raise typer.BadParameter(f"--mass must be between 0 and 1, not {cap.mass}.")
    if matching.given:
        matching.check(cap)
        _print_matches(gallery, query, model, results, matching, as_json=as_json)
        return
    built, hits, about, notes = _search(gallery, query, model, cap, results)
    if as_json:
        print_json(_as_json(shown_address(gallery), built, hits, about, notes))
        return
    _show(built, hits, about, results.limit)
    for note in notes:
        _print_note(note)


def _print_note(note: str) -> None:
    """Print a remark on stderr."""
    console = rich.console.Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"note: {printable(note)}", markup=False)


def _check_query(query: QueryOptions, model: ModelOptions) -> None:
    """Raise unless the options define exactly one query."""
    given = (query.item, query.vector_from, query.text, query.image)
    if sum(value is not None for value in given) != 1:
        raise typer.BadParameter("give exactly one query: --id, --vector-from, --text or --image.")
    if (query.vector_from is None) != (query.row is None):
        raise typer.BadParameter("--vector-from and --row must be used together.")
    raw = query.text is not None or query.image is not None
    if raw != (model.encoder is not None):
        raise typer.BadParameter("--text and --image need --encoder, and other queries take none.")
    if model.head is not None and query.item is not None:
        raise typer.BadParameter("--head is not for --id: the gallery has the item's posterior.")


def _search(
    gallery: str,
    query: QueryOptions,
    model: ModelOptions,
    cap: CapOptions,
    results: ResultOptions,
) -> tuple[Query, au.caps.Hits, dict[str, Any], list[str]]:
    """Return the query, its hits, facts about the cap, and warnings."""
    from aureole.caps._caps import cap_kind
    from aureole.caps._hits import describe_cap, pick_hits

    limit = results.limit
    with (
        warnings.catch_warnings(record=True) as caught,
        au.CredibleIndex.open(gallery) as index,
    ):
        warnings.simplefilter("always", AureoleWarning)
        conditions = au.engines.parse_filter(results.filters or [], index.schema)
        built = _build_query(index, query, model)
        kappa_pos = cap.kappa_pos
        if kappa_pos is None and cap.guarantee is None:
            kappa_pos = index.origin.kappa_pos if built.kappa_pos is None else built.kappa_pos
        kind = cap_kind(cap.kind, kappa_pos, cap.guarantee)
        hits = index.search(
            built.posterior,
            cap.mass,
            limit=limit if limit is None or built.item is None else limit + 1,
            filter=conditions,
            columns=list(index.schema.columns),
            exact=results.exact,
            options=au.caps.SearchOptions(
                kind=kind,
                kappa_pos=kappa_pos,
                guarantee=cap.guarantee,
                widest=None if cap.widest is None else math.radians(cap.widest),
            ),
        )
        assert isinstance(hits, au.caps.Hits)
        described = describe_cap(
            cap.mass,
            kind,
            kappa_pos=kappa_pos,
            typical_kappa=index.schema.typical_kappa,
            conformal=index.conformal if cap.guarantee else None,
        )
    # an item is not a result of its own query
    hits = pick_hits(hits, [i for i, name in enumerate(hits.ids) if name != built.item][:limit])
    cosine = hits.threshold.tolist()
    described |= {
        "conformal": cap.guarantee is not None,
        "cosine": cosine,
        "degrees": [math.degrees(math.acos(max(-1.0, c))) if c <= 1 else 0.0 for c in cosine],
        "widest_degrees": cap.widest,
    }
    notes = list(dict.fromkeys(str(w.message) for w in caught if w.category is AureoleWarning))
    return built, hits, described, notes


def _as_json(
    gallery: str, query: Query, hits: au.caps.Hits, cap: dict[str, Any], notes: list[str]
) -> dict[str, Any]:
    scores = {"cosine": hits.cosine, "kappa": hits.kappa, "log_positivity": hits.log_positivity}
    scores = {name: values for name, values in scores.items() if values is not None}
    return {
        "gallery": gallery,
        "query": {"about": query.about, "kappa": query.posterior.kappa.tolist()},
        "cap": cap,
        "asks_back": hits.asks_back,
        "count": len(hits),
        "hits": [
            {
                "id": hits.ids[i],
                **{name: float(values[i]) for name, values in scores.items()},
                "payload": {name: values[i] for name, values in hits.payload.items()},
            }
            for i in range(len(hits))
        ],
        "notes": notes,
    }


def _show(query: Query, hits: au.caps.Hits, cap: dict[str, Any], limit: int | None) -> None:
    """Print the query, its cap and the first hits."""
    kappa = ", ".join(f"{k:.4g}" for k in query.posterior.kappa.reshape(-1).tolist())
    print_text(printable(f"query: {query.about}, κ {kappa}"), _about_cap(cap))
    if hits.asks_back:
        widest = f"{cap['widest_degrees']:g}°"
        print_text(f"The query is too vague: its cap is wider than {widest}. Ask for more detail.")
        return
    if not len(hits):
        print_text("no item is inside the cap")
        return
    count = min(len(hits), limit or _SHOWN)
    scored = hits.log_positivity is not None
    header = ("id", "cosine", "κ", *(["log positivity"] if scored else []), *hits.payload)
    rows = table("results", *header)
    for i in range(count):
        cells = [f"{hits.cosine[i]:.4f}", f"{hits.kappa[i]:.4g}"]
        if hits.log_positivity is not None:
            cells.append(f"{hits.log_positivity[i]:.4g}")
        add_row(rows, hits.ids[i], *cells, *(_short_value(c[i]) for c in hits.payload.values()))
    print_table(rows)
    more = len(hits) - count
    rest = f", of which {more:,} are not shown: see --limit and --json" if more else ""
    if len(hits) == limit:
        print_text(f"{len(hits):,} results, the limit; there may be more in the cap")
    else:
        print_text(f"{len(hits):,} in the cap{rest}")


def _about_cap(cap: dict[str, Any]) -> str:
    """Return the kind of the cap, its mass, its calibration, its size, and when the search abstains."""
    covers = {"credible": "the query's own latent", "predictive": "the μ of a match"}
    kind, mass = cap["kind"], cap["mass"]
    text = f"{kind} cap, which contains {covers[kind]} with probability {mass:g}"
    if cap["conformal"]:
        text += (
            f" on average over pairs, even if the model is wrong (conformal: {cap['pairs']:,} held-out pairs require "
            f"the mass {cap['level']:.4g})"
        )
    pairs = zip(cap["cosine"], cap["degrees"], strict=True)
    reach = ", ".join(f"{c:.4f} ({d:.1f}°)" for c, d in pairs if c <= 1)
    text += f"; cosine at least {reach or 'none'}"
    if cap["widest_degrees"] is not None:
        text += f"; abstains if the cap is wider than {cap['widest_degrees']:g}°"
    return text


def _build_query(index: au.CredibleIndex, query: QueryOptions, model: ModelOptions) -> Query:
    """Return the posterior of a query to a gallery; inputs are checked before a model is loaded."""
    path, row = query.vector_from, query.row or 0
    kind: Any = "vector"
    if query.item is not None:
        stored, _ = index.fetch([query.item])
        return Query(_single(stored), f"item {query.item[:60]!r}", item=query.item)
    if query.text is not None:
        kind, raw = "text", au.encoders._encoder.check_text(query.text)
        about = f"text {query.text[:60]!r}"
    elif query.image is not None:
        au.data._image_files.read_rgb(query.image)
        kind, raw, about = "image", query.image, f"picture {query.image}"
    else:
        assert path is not None  # the options were checked
        about = f"row {row} of {path}"
        if model.head is None:
            return Query(_row_posterior(path, row), about)
        raw = au.data._tables.pick_vector(path, model.vector_column, row)
    embedder = au.embed.ModelSpec(model.encoder, model.head).load(kind)
    names = (str(name) for name in (model.encoder, model.head) if name is not None)
    who = f"the model {' with '.join(names)}"
    index.origin.check_same(embedder.weights, who, encoder=embedder.fingerprint)
    return Query(_single(embedder.posterior(raw)), about, embedder.kappa_pos)


def _row_posterior(path: Path, row: int) -> au.VonMisesFisher:
    """Return the posterior in the columns of mu and kappa of a row."""
    mu = torch.from_numpy(au.data._tables.pick_vector(path, "mu", row).copy())
    kappa = au.data._tables.pick_inputs(path, "kappa", None, [row])[row]
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


def _short_value(value: Any) -> str:
    """Return a value of the gallery for a table: printable, at most 40 characters, shortened between words."""
    text = printable(f"{value:g}" if isinstance(value, float) else str(value))
    if len(text) <= _WIDTH:
        return text
    words, _, _ = text[: _WIDTH - 1].rpartition(" ")
    return f"{words} …" if words.strip() else f"{text[: _WIDTH - 1]}…"


def _print_matches(
    gallery: str,
    query: QueryOptions,
    model: ModelOptions,
    results: ResultOptions,
    matching: MatchingOptions,
    *,
    as_json: bool,
) -> None:
    """Print the matches of a query as a table or as JSON; an empty result is its reason in one line."""
    built, found = _match(gallery, query, model, results, matching)
    if as_json:
        print_json(_matches_json(shown_address(gallery), built, found))
        return
    kappa = float(built.posterior.kappa)
    print_text(
        printable(f"query: {built.about}, κ {kappa:.4g}"),
        f"matches with probability at least {found.threshold:.3g}{matching.aim()}; p-value that nothing matches: "
        f"{found.p_value:.3g}",
    )
    if found.reason is None:
        hits = found.hits
        rows = table("results", "id", "probability", "cosine", "κ", *hits.payload)
        for i, name in enumerate(hits.ids):
            numbers = (
                f"{found.probabilities[i]:.3f}",
                f"{hits.cosine[i]:.4f}",
                f"{hits.kappa[i]:.4g}",
            )
            payload = [_short_value(column[i]) for column in hits.payload.values()]
            add_row(rows, name, *numbers, *payload)
        print_table(rows)
    count = len(found)
    print_text(printable(found.reason or f"{count:,} {'match' if count == 1 else 'matches'}"))
    if found.note is not None:
        _print_note(found.note)


def _match(
    gallery: str,
    query: QueryOptions,
    model: ModelOptions,
    results: ResultOptions,
    matching: MatchingOptions,
) -> tuple[Query, GalleryMatches]:
    """Return the query and its matches; the calibrator is checked before a model is loaded."""
    assert matching.calibrator is not None  # the options were checked
    calibrator = au.MatchCalibrator.load(matching.calibrator)
    options = au.match.MatchOptions(
        matching.threshold, matching.precision, matching.recall, results.limit, matching.abstain
    )
    with au.CredibleIndex.open(gallery) as index:
        matcher = au.match.GalleryMatcher(calibrator, index)
        matcher.threshold(options)  # raises before a model is loaded
        filter = au.engines.parse_filter(results.filters or [], index.schema)
        built = _build_query(index, query, model)
        found = matcher.match(
            built.posterior if built.item is None else built.item,
            options,
            filter=filter,
            columns=list(index.schema.columns),
            exact=results.exact,
        )
    return built, found


def _matches_json(gallery: str, built: Query, found: GalleryMatches) -> dict[str, Any]:
    hits = found.hits
    return {
        "gallery": gallery,
        "query": {"about": built.about, "kappa": float(built.posterior.kappa)},
        "threshold": found.threshold,
        "p_value": found.p_value,
        "abstained": found.abstained,
        "reason": found.reason,
        "count": len(found),
        "hits": [
            {
                "id": name,
                "probability": float(found.probabilities[i]),
                "cosine": float(hits.cosine[i]),
                "kappa": float(hits.kappa[i]),
                "payload": {column: values[i] for column, values in hits.payload.items()},
            }
            for i, name in enumerate(hits.ids)
        ],
        "notes": [] if found.note is None else [found.note],
    }
