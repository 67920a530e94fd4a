"""``aureole search``: the items inside the cap of one query, and why each is there."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import typer

import aureole as au
from aureole.cli._lazy import rich
from aureole.cli._match import MatchingOptions, print_matches
from aureole.cli._options import AsJson, Gallery, expanded
from aureole.cli._output import (
    add_row,
    print_json,
    print_table,
    print_text,
    printable,
    table,
)
from aureole.cli._queries import (
    CapOptions,
    ModelOptions,
    Query,
    QueryOptions,
    ResultOptions,
    build_query,
    short_value,
)
from aureole.engines._addresses import shown_address
from aureole.errors import AureoleWarning

HELP = r"""Search a gallery: the certainty of the query decides how many items are returned.

The query is an item of the gallery (left out of its own results), a row of a table, a text, or a picture. With
--calibrator, match probabilities decide instead of a cap, and with --abstain a query without a match returns nothing.

Examples:

    aureole search gallery.lance --id "shoe 17" --mass 0.9
    aureole search gallery.lance --vector-from queries.parquet --row 3 \
      --head head --filter price=10..20
    aureole search gallery.lance --text "red shoes" --head head \
      --encoder sentence-transformers:all-MiniLM-L6-v2 \
      --guarantee conformal --widest 60 --explain
    aureole search gallery.lance --image shoe.jpg --encoder encoder \
      --filter colour=red,blue --json
    aureole search gallery.lance --id "shoe 17" --calibrator calibrator \
      --precision 0.8 --abstain 0.05
"""
_SHOWN = 20  # hits in the text output without --limit


@dataclass(frozen=True)
class Answer:
    """The result of a search: the query, the hits, their explanation, the cap, and warnings."""

    query: Query
    hits: au.caps.Hits
    why: au.caps.Explanation
    cap: dict[str, Any]
    notes: list[str]


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
        matching.check(cap, results)
        print_matches(gallery, query, model, results, matching, as_json=as_json)
        return
    shown = None if as_json else results.limit or _SHOWN
    answer = _search(gallery, query, model, cap, results, shown=shown)
    answer.cap["cosine"] = answer.hits.threshold.tolist()
    answer.cap["degrees"] = answer.why.cap_degrees.tolist()
    answer.cap["widest_degrees"] = cap.widest
    if as_json:
        print_json(_as_json(answer, shown_address(gallery)))
        return
    _show(answer, limit=results.limit, shown=shown or _SHOWN, explain=results.explain)
    for note in answer.notes:
        rich.console.Console(stderr=True, soft_wrap=True).print(
            f"note: {note}", markup=False, highlight=False
        )


def _check_query(query: QueryOptions, model: ModelOptions) -> None:
    """Raise unless the options define exactly one query."""
    given = (query.item, query.vector_from, query.text, query.image)
    if sum(value is not None for value in given) != 1:
        raise typer.BadParameter("give exactly one query: --id, --vector-from, --text or --image.")
    if (query.vector_from is None) != (query.row is None):
        raise typer.BadParameter("--vector-from and --row must be used together.")
    if model.text_column and model.image_column:
        raise typer.BadParameter("use either --text-column or --image-column, not both.")
    column = model.text_column or model.image_column
    if column is not None and (query.vector_from is None or model.vector_column is not None):
        raise typer.BadParameter(
            "--text-column and --image-column are for --vector-from, without --vector-column."
        )
    raw = query.text is not None or query.image is not None or column is not None
    if raw and model.encoder is None:
        raise typer.BadParameter("a text or a picture needs --encoder.")
    if model.encoder is not None and not raw:
        raise typer.BadParameter(
            "--encoder is only for --text, --image, and --vector-from with --text-column or --image-column."
        )
    if model.head is not None and query.item is not None:
        raise typer.BadParameter("--head is not for --id: the gallery has the item's posterior.")


def _search(
    gallery: str,
    query: QueryOptions,
    model: ModelOptions,
    cap: CapOptions,
    results: ResultOptions,
    *,
    shown: int | None,
) -> Answer:
    """Search a gallery; only the first ``shown`` hits (None: all) have an explanation."""
    from aureole.caps._caps import cap_kind
    from aureole.caps._hits import describe_cap, pick_hits

    limit = results.limit
    with (
        warnings.catch_warnings(record=True) as caught,
        au.CredibleIndex.open(gallery) as index,
    ):
        warnings.simplefilter("always", AureoleWarning)
        conditions = au.engines.parse_filter(results.filters or [], index.schema)
        built = build_query(index, query, model)
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
                prior=results.prior,
                rank=results.rank,
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
    first = pick_hits(hits, list(range(len(hits)))[:shown])
    why = au.caps.explain_hits(first, built.posterior, latent=results.explain)
    notes = list(dict.fromkeys(str(w.message) for w in caught if w.category is AureoleWarning))
    described["conformal"] = cap.guarantee is not None
    return Answer(built, hits, why, described, notes)


def _as_json(answer: Answer, gallery: str) -> dict[str, Any]:
    hits, why, query = answer.hits, answer.why, answer.query
    scores = {"cosine": hits.cosine, "degrees": why.degrees, "kappa": hits.kappa}
    scores |= {"log_positivity": hits.log_positivity, "probability": hits.probability}
    scores |= {"latent_in_cap": why.latent_in_cap}
    return {
        "gallery": gallery,
        "query": {"about": query.about, "kappa": query.posterior.kappa.tolist()},
        "cap": answer.cap,
        "asks_back": hits.asks_back,
        "count": len(hits),
        "hits": [
            {
                "id": hits.ids[i],
                **{name: float(values[i]) for name, values in scores.items() if values is not None},
                "payload": {name: values[i] for name, values in hits.payload.items()},
            }
            for i in range(len(hits))
        ],
        "notes": answer.notes,
    }


def _show(answer: Answer, *, limit: int | None, shown: int, explain: bool) -> None:
    """Print the query, its cap and the first hits, as a table or with the reasons for each."""
    query, cap, hits, why = answer.query, answer.cap, answer.hits, answer.why

    def say(text: str) -> None:
        print_text(printable(text))

    kappa = ", ".join(f"{k:.4g}" for k in query.posterior.kappa.reshape(-1).tolist())
    say(f"query: {query.about}, κ {kappa}")
    say(_about_cap(cap))
    if hits.asks_back:
        widest = f"{cap['widest_degrees']:g}°"
        say(f"The query is too vague: its cap is wider than {widest}. Ask for more detail.")
        return
    if not len(hits):
        say("no item is inside the cap")
        return
    count = min(len(hits), shown)
    if explain:
        for i in range(count):
            for line in _reasons(hits, why, cap, i):
                say(line)
    else:
        print_table(_hits_table(hits, why, count))
    if len(hits) == limit:
        say(f"{len(hits):,} results, the limit; there may be more in the cap")
        return
    more = len(hits) - count
    rest = f", of which {more:,} are not shown: see --limit and --json" if more else ""
    say(f"{len(hits):,} in the cap{rest}")


def _about_cap(cap: dict[str, Any]) -> str:
    """The kind of the cap, its mass, its calibration, its size, and when the search abstains."""
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


def _reasons(
    hits: au.caps.Hits, why: au.caps.Explanation, cap: dict[str, Any], i: int
) -> list[str]:
    """Why a hit is in the cap, in a few lines."""
    from aureole.caps._hits import times_more_likely

    limits = [c for c in cap["cosine"] if c <= 1]
    reached = f" >= {limits[0]:.4f}" if len(limits) == 1 else " within the cap of its component"
    allowed = f" of {why.cap_degrees.nan_to_num().max():.1f}°"
    lines = [
        f"{i + 1}. {printable(str(hits.ids[i]))}",
        f"   cosine {hits.cosine[i]:.4f}{reached}: {why.degrees[i]:.1f}°{allowed} from the query's μ; "
        f"κ {hits.kappa[i]:.4g}",
    ]
    if hits.log_positivity is not None:
        ratio = float(hits.log_positivity[i])
        chance = "" if hits.probability is None else f"; P(positive) {hits.probability[i]:.4g}"
        times = times_more_likely(ratio)
        lines.append(f"   {times} to match than a random item (log positivity {ratio:.3f}){chance}")
    if why.latent_in_cap is not None:
        chance = f"{why.latent_in_cap[i]:.4f}"
        lines.append(f"   its own latent is inside the cap with probability {chance}")
    if hits.payload:
        values = (f"{name} {short_value(column[i])}" for name, column in hits.payload.items())
        lines.append(f"   {', '.join(values)}")
    return lines


def _hits_table(hits: au.caps.Hits, why: au.caps.Explanation, count: int) -> rich.table.Table:
    scores = {"log positivity": hits.log_positivity, "P(positive)": hits.probability}
    scores = {name: values for name, values in scores.items() if values is not None}
    rows = table("results", "id", "cosine", "angle", "κ", *scores, *hits.payload)
    for i in range(count):
        cells = [f"{hits.cosine[i]:.4f}", f"{why.degrees[i]:.1f}°", f"{hits.kappa[i]:.4g}"]
        cells += [f"{values[i]:.4g}" for values in scores.values()]
        payload = [short_value(column[i]) for column in hits.payload.values()]
        add_row(rows, hits.ids[i], *cells, *payload)
    return rows
