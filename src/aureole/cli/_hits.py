"""Hits as people read them: a table, or the reasons for each."""

from typing import Any

from rich.console import Console
from rich.text import Text

from aureole.cli._queries import Query
from aureole.cli._results import table
from aureole.retrieval import Explanation, Hits

_WIDE = 40  # characters of a value


def show_hits(
    query: Query,
    cap: dict[str, Any],
    hits: Hits,
    shown: Hits,
    why: Explanation,
    *,
    limit: int | None,
    explain: bool,
) -> None:
    """Print the query, its cap and the hits that are shown, as a table or with the reasons for each."""
    console = Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(_plain(text), markup=False)

    kappa = ", ".join(f"{k:.4g}" for k in query.posterior.kappa.reshape(-1).tolist())
    say(f"query: {query.about}, κ {kappa}")
    say(_about_cap(cap))
    if hits.asks_back:
        say(
            f"The query is too vague: its cap is wider than {cap['widest_degrees']:g}°. Ask for more detail."
        )
        return
    if not len(hits):
        say("nothing lies in the cap")
        return
    if explain:
        for i in range(len(shown)):
            for line in _reasons(shown, why, cap, i):
                say(line)
    else:
        console.print(_hits_table(shown, why))
    if len(hits) == limit:
        say(f"{len(hits):,} results, the limit; there may be more in the cap")
        return
    more = len(hits) - len(shown)
    rest = f", of which {more:,} are not shown: see --limit and --json" if more else ""
    say(f"{len(hits):,} in the cap{rest}")


def _about_cap(cap: dict[str, Any]) -> str:
    """What the cap is: its kind, its mass, whether a calibration made it, and when the query is asked back."""
    holds = {"credible": "the query's own latent", "predictive": "the μ of a partner"}[cap["kind"]]
    text = f"{cap['kind']} cap, which holds {holds} with probability {cap['mass']:g}"
    if cap["conformal"]:
        text += (
            f" on average over pairs, whatever the model's faults (conformal: {cap['pairs']:,} held-out pairs ask "
            f"for the mass {cap['level']:.4g})"
        )
    pairs = zip(cap["cosine"], cap["degrees"], strict=True)
    reach = ", ".join(f"{c:.4f} ({d:.1f}°)" for c, d in pairs if c <= 1)
    text += f"; cosine at least {reach or 'none'}"
    if cap["widest_degrees"] is not None:
        text += f"; a query with a cap wider than {cap['widest_degrees']:g}° is asked back"
    return text


def _reasons(hits: Hits, why: Explanation, cap: dict[str, Any], i: int) -> list[str]:
    """Why a hit is in the set, in a few lines."""
    limits = [c for c in cap["cosine"] if c <= 1]
    reached = f" >= {limits[0]:.4f}" if len(limits) == 1 else " within the cap of its component"
    allowed = f" of {why.cap_degrees.nan_to_num().max():.1f}°"
    lines = [
        f"{i + 1}. {_short(hits.ids[i])}",
        f"   cosine {hits.cosine[i]:.4f}{reached}: {why.degrees[i]:.1f}°{allowed} from the query's μ; "
        f"κ {hits.kappa[i]:.4g}",
    ]
    if hits.log_positivity is not None:
        ratio = float(hits.log_positivity[i])
        chance = "" if hits.probability is None else f"; P(positive) {hits.probability[i]:.4g}"
        lines.append(
            f"   expected positivity: log S h = {ratio:.3f} (0: as likely as chance){chance}"
        )
    if why.latent_in_cap is not None:
        lines.append(
            f"   its own latent lies in the cap with probability {why.latent_in_cap[i]:.4f}"
        )
    if hits.payload:
        values = (f"{name} {_short(column[i])}" for name, column in hits.payload.items())
        lines.append(f"   {', '.join(values)}")
    return lines


def _hits_table(hits: Hits, why: Explanation) -> Any:
    scores = {"log S h": hits.log_positivity, "P(positive)": hits.probability}
    scores = {name: values for name, values in scores.items() if values is not None}
    found = table("results", "id", "cosine", "angle", "κ", *scores, *hits.payload)
    for i in range(len(hits)):
        cells = [f"{hits.cosine[i]:.4f}", f"{why.degrees[i]:.1f}°", f"{hits.kappa[i]:.4g}"]
        cells += [f"{values[i]:.4g}" for values in scores.values()]
        payload = [_short(column[i]) for column in hits.payload.values()]
        # what a gallery holds is text, not markup
        found.add_row(*(Text(cell) for cell in (_short(hits.ids[i]), *cells, *payload)))
    return found


def _short(value: Any) -> str:
    text = _plain(f"{value:g}" if isinstance(value, float) else str(value))
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 1]}…"


def _plain(text: str) -> str:
    """The text without what a terminal would obey: escapes, line breaks, signs that turn the direction."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
