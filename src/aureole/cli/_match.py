"""``aureole search --calibrator``: results by their match probability instead of a cap, or none and the reason."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

import aureole as au
from aureole.cli._lazy import rich
from aureole.cli._options import option
from aureole.cli._output import add_row, print_json, print_table, print_text, printable, table
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

if TYPE_CHECKING:
    from aureole.match._gallery import GalleryMatches

_CAPS_ONLY = (*CapOptions.__dataclass_fields__, "prior", "rank", "explain")


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

    def check(self, cap: CapOptions, results: ResultOptions) -> None:
        """Raise if these options contradict others."""
        if self.calibrator is None:
            raise typer.BadParameter(
                "--threshold, --precision, --recall and --abstain need --calibrator."
            )
        aims = (self.threshold, self.precision, self.recall)
        if sum(aim is not None for aim in aims) > 1:
            raise typer.BadParameter("use at most one of --threshold, --precision and --recall.")
        for part in (cap, results):
            for name, entry in part.__dataclass_fields__.items():
                if name in _CAPS_ONLY and getattr(part, name) != entry.default:
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


def print_matches(
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
        print_json(_as_json(shown_address(gallery), built, found))
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
            payload = [short_value(column[i]) for column in hits.payload.values()]
            add_row(rows, name, *numbers, *payload)
        print_table(rows)
    count = len(found)
    print_text(printable(found.reason or f"{count:,} {'match' if count == 1 else 'matches'}"))
    if found.note is not None:
        notes = rich.console.Console(stderr=True, soft_wrap=True, highlight=False)
        notes.print(f"note: {printable(found.note)}", markup=False)


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
        built = build_query(index, query, model)
        found = matcher.match(
            built.posterior if built.item is None else built.item,
            options,
            filter=filter,
            columns=list(index.schema.columns),
            exact=results.exact,
        )
    return built, found


def _as_json(gallery: str, built: Query, found: GalleryMatches) -> dict[str, Any]:
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
