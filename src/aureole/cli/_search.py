"""``aureole search``: what lies in the cap of one query, and why."""

import math
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from aureole.cli._hits import show_hits
from aureole.cli._options import AsJson, Normalized, OptionalHead
from aureole.cli._queries import Query, image_query, item_query, row_query, text_query
from aureole.cli._remote import ask_server
from aureole.cli._results import print_json
from aureole.errors import AureoleWarning
from aureole.retrieval import (
    CredibleIndex,
    Explanation,
    Hits,
    explain_hits,
    parse_filter,
    pick_hits,
    shown_address,
)

HELP = r"""Search a gallery: the query's own certainty decides how many items it gets.

The query is an item of the gallery (which is left out of its own results), a row of a table, a text, or a picture.

Examples:

    aureole search gallery.lance --id "shoe 17" --mass 0.9
    aureole search gallery.lance --vector-from queries.parquet --row 3 \
      --head head --filter price=10..20
    aureole search gallery.lance --text "red shoes" --head head \
      --guarantee conformal --widest 60 --explain
    aureole search gallery.lance --image shoe.jpg --encoder encoder \
      --filter colour=red,blue --json
    aureole search --server http://127.0.0.1:8765 --text "red shoes"
"""
_SHOWN = 20  # hits that people are shown unless they ask for more


def search(
    gallery: Annotated[
        str | None, typer.Argument(help="The gallery's address.", metavar="[ADDRESS]")
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help="Ask the service at this URL instead; its key from AUREOLE_API_KEY.", metavar="URL"),
    ] = None,
    item: Annotated[
        str | None, typer.Option("--id", help="The query: an item of the gallery.")
    ] = None,
    vector_from: Annotated[
        Path | None, typer.Option(help="The query: a row of this table, by --head or as mu and kappa.")
    ] = None,
    row: Annotated[int | None, typer.Option(min=0, help="Its number, from 0 on.")] = None,
    text: Annotated[
        str | None, typer.Option(help="The query: a text, by MiniLM and --head, or by --encoder.")
    ] = None,
    image: Annotated[
        Path | None, typer.Option(help="The query: a picture, by --encoder.")
    ] = None,
    head: OptionalHead = None,
    encoder: Annotated[
        Path | None, typer.Option(help="The folder of a saved PosteriorEncoder or pipeline.")
    ] = None,
    normalized: Normalized = None,
    vector_column: Annotated[
        str | None, typer.Option(help="With --head: the column of vectors.")
    ] = None,
    mu_column: Annotated[str, typer.Option(help="Without --head: the column of mu.")] = "mu",
    kappa_column: Annotated[
        str, typer.Option(help="Without --head: the column of kappa.")
    ] = "kappa",
    mass: Annotated[
        float, typer.Option(help="How much the cap holds, between 0 and 1.")
    ] = 0.95,
    limit: Annotated[int | None, typer.Option(min=1, help="The most results.")] = None,
    kind: Annotated[
        Literal["credible", "predictive"] | None,
        typer.Option(help="What the cap holds: the query's own latent (default), or partners' mu."),
    ] = None,
    kappa_pos: Annotated[
        float | None,
        typer.Option(min=0, help="How close partners' latents are; default: the head's."),
    ] = None,
    prior: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The share of partners among all items, for P(positive)."),
    ] = None,
    rank: Annotated[
        Literal["cosine", "positivity"], typer.Option(help="The order of the results.")
    ] = "cosine",
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", help="A demand on a payload column; repeatable.",
                     metavar="COL=VALUE|A,B|LOW..HIGH"),
    ] = None,
    guarantee: Annotated[
        Literal["conformal"] | None,
        typer.Option(help="Make the predictive cap's promise hold, by the gallery's calibration."),
    ] = None,
    widest: Annotated[
        float | None,
        typer.Option(min=0, max=180, help="Degrees: a query with a wider cap is asked back."),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Pass by an approximate index.")
    ] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say of each result why it is there.")
    ] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Search and print; ``HELP`` is what users read."""
    _check(item, vector_from, row, text, image, head, encoder, server)
    if (gallery is None) == (server is None):
        raise typer.BadParameter("give the gallery's address or --server, one of the two.")
    if not 0 <= mass <= 1:
        raise typer.BadParameter(f"--mass must be between 0 and 1, not {mass}.")
    kind = kind or ("predictive" if guarantee else "credible")
    if server is not None:
        if kappa_pos is not None:
            raise typer.BadParameter("--kappa-pos is the service's own.")
        place = None
        if vector_from is not None:
            place = (vector_from, row or 0, vector_column, mu_column, kappa_column)
        found = ask_server(
            server, item=item, row=place, text=text, image=image, filters=filters or [],
            mass=mass, limit=limit, kind=kind, prior=prior, rank=rank,
            guarantee=guarantee or "model", widest=widest, exact=exact, explain=explain,
        )  # fmt: skip
        shown = found.hits if as_json else _first(found.hits, limit or _SHOWN)
        _show(server, found.query, found.cap, found.hits, shown, found.why, found.notes,
              widest=widest, limit=limit, explain=explain, as_json=as_json)  # fmt: skip
        return
    assert gallery is not None
    with warnings.catch_warnings(record=True) as said, CredibleIndex.open(gallery) as index:
        warnings.simplefilter("always", AureoleWarning)
        demands = parse_filter(filters or [], index.schema)
        if item is not None:
            query = item_query(index, item)
        elif vector_from is not None:
            columns = (vector_column, mu_column, kappa_column)
            query = row_query(index, vector_from, row or 0, columns, head)
        elif text is not None:
            query = text_query(index, text, head, encoder, normalized=normalized)
        else:
            assert image is not None  # _check saw to it
            assert encoder is not None
            query = image_query(index, image, encoder)
        if kappa_pos is None and guarantee is None:
            kappa_pos = index.origin.kappa_pos if query.kappa_pos is None else query.kappa_pos
        hits: Hits = index.search(
            query.posterior,
            mass,
            limit=limit if limit is None or query.item is None else limit + 1,
            filter=demands,
            kind=kind,
            kappa_pos=kappa_pos,
            prior=prior,
            rank=rank,
            guarantee=guarantee,
            widest=None if widest is None else math.radians(widest),
            columns=list(index.schema.columns),
            exact=exact,
        )
        hits = _without(hits, query.item, limit)
        cap: dict[str, Any] = {"kind": kind, "mass": mass, "conformal": guarantee is not None}
        cap |= _level(index, mass, guarantee, kappa_pos, kind)
    notes = list(dict.fromkeys(str(w.message) for w in said if w.category is AureoleWarning))
    shown = hits if as_json else _first(hits, limit or _SHOWN)
    why = explain_hits(shown, query.posterior, latent=explain)
    _show(gallery, query, cap, hits, shown, why, notes,
          widest=widest, limit=limit, explain=explain, as_json=as_json)  # fmt: skip


def _show(
    where: str,
    query: Query,
    cap: dict[str, Any],
    hits: Hits,
    shown: Hits,
    why: Explanation,
    notes: list[str],
    *,
    widest: float | None,
    limit: int | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Print what was found, for people or as JSON."""
    cap["cosine"], cap["degrees"] = hits.threshold.tolist(), why.cap_degrees.tolist()
    cap["widest_degrees"] = widest
    if as_json:
        print_json(
            {
                "gallery": shown_address(where),
                "query": {"about": query.about, "kappa": query.posterior.kappa.tolist()},
                "cap": cap,
                "asks_back": hits.asks_back,
                "count": len(hits),
                "hits": [_entry(hits, why, i) for i in range(len(hits))],
                "notes": notes,
            }
        )
        return
    show_hits(query, cap, hits, shown, why, limit=limit, explain=explain)
    for note in notes:
        Console(stderr=True, soft_wrap=True).print(f"note: {note}", markup=False, highlight=False)


def _check(
    item: str | None,
    vector_from: Path | None,
    row: int | None,
    text: str | None,
    image: Path | None,
    head: Path | None,
    encoder: Path | None,
    server: str | None,
) -> None:
    """Refuse a command whose options do not make one query."""
    given = [value for value in (item, vector_from, text, image) if value is not None]
    if len(given) != 1:
        raise typer.BadParameter("give one query: --id, --vector-from, --text or --image.")
    if (vector_from is None) != (row is None):
        raise typer.BadParameter("--vector-from and --row go together.")
    if server is not None:
        if head is not None or encoder is not None:
            raise typer.BadParameter("--head and --encoder are the service's own.")
        return
    if text is not None and (head is None) == (encoder is None):
        raise typer.BadParameter(
            "--text needs --head (on MiniLM's vectors) or --encoder, one of the two."
        )
    if image is not None and encoder is None:
        raise typer.BadParameter("--image needs --encoder, a saved PosteriorEncoder.")
    if head is not None and (item is not None or image is not None):
        raise typer.BadParameter(
            "--head is for --vector-from and --text; --id and --image need none."
        )
    if encoder is not None and (item is not None or vector_from is not None):
        raise typer.BadParameter("--encoder is for --text and --image.")


def _level(
    index: CredibleIndex, mass: float, guarantee: str | None, kappa_pos: float | None, kind: str
) -> dict[str, Any]:
    """The mass that was searched with, after the calibration, and the concentrations that the cap was made with."""
    held = index.conformal if guarantee else None
    if held is not None:
        used = {"kappa_pos": held.kappa_pos, "kappa_other": held.kappa_other}
        return {"level": held.level(mass), "pairs": len(held.scores), **used}
    other = index.schema.typical_kappa if kind == "predictive" else None
    return {"level": mass, "pairs": None, "kappa_pos": kappa_pos, "kappa_other": other}


def _without(hits: Hits, item: str | None, limit: int | None) -> Hits:
    """The hits without the item that asked, cut to the limit."""
    return pick_hits(hits, [i for i, name in enumerate(hits.ids) if name != item][:limit])


def _first(hits: Hits, count: int) -> Hits:
    return pick_hits(hits, list(range(min(count, len(hits)))))


def _entry(hits: Hits, why: Explanation, i: int) -> dict[str, Any]:
    scores = {
        "log_positivity": hits.log_positivity,
        "probability": hits.probability,
        "latent_in_cap": why.latent_in_cap,
    }
    return {
        "id": hits.ids[i],
        "cosine": float(hits.cosine[i]),
        "degrees": float(why.degrees[i]),
        "kappa": float(hits.kappa[i]),
        **{name: float(values[i]) for name, values in scores.items() if values is not None},
        "payload": {name: values[i] for name, values in hits.payload.items()},
    }
