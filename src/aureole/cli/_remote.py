"""``aureole search --server``: the same question put to a service."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aureole.cli._options import KEY
from aureole.cli._queries import Query
from aureole.data import pick_rows, pick_vector
from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.retrieval import Explanation, Hits, Schema, explain_hits, parse_filter
from aureole.serve import Client

_MOST = 1000  # hits that a service gives at most


@dataclass(frozen=True)
class Remote:
    """What a service answered, as the command shows it."""

    query: Query
    hits: Hits
    why: Explanation
    cap: dict[str, Any]
    notes: list[str]


def ask_server(
    url: str,
    *,
    item: str | None,
    row: tuple[Path, int, str | None, str, str] | None,
    text: str | None,
    image: Path | None,
    filters: list[str],
    **options: Any,
) -> Remote:
    """The answer of the service at a URL; its key, if it has one, is in the environment.

    ``row`` is (table, number, column of vectors or None, columns of mu and kappa).
    """
    with Client(url, key=os.environ.get(KEY)) as client:
        about = client.about()
        schema = Schema(about["dim"], about["columns"])
        demands = parse_filter(filters, schema)
        asked: dict[str, Any] = {"id": item, "text": text, "image": image}
        if row is not None:
            asked |= _row(*row)
        limit = options.pop("limit")
        found = client.search(**asked, filter=demands, limit=limit or _MOST, **options)
    # of the query's direction nothing is shown
    axis = torch.eye(schema.dim)[0]
    own = VonMisesFisher(axis, torch.tensor(found.kappa), validate_args=False)
    why = explain_hits(found.hits, own, latent=False)
    if found.latent_in_cap is not None:
        chance = torch.tensor(found.latent_in_cap, dtype=torch.float64)
        why = Explanation(why.degrees, why.cap_degrees, chance)
    notes = []
    if found.truncated and limit is None:
        least = "" if found.count_exact else "at least "
        notes.append(f"a service gives {_MOST:,} hits at most; the cap has {least}{found.count:,}.")
    cap = {**found.cap, "conformal": options["guarantee"] == "conformal"}
    return Remote(Query(own, found.about), found.hits, why, cap, notes)


def _row(path: Path, row: int, vector: str | None, mu: str, kappa: str) -> dict[str, Any]:
    """A row's vector, for the service's encoder; or its mu and kappa."""
    if vector is not None:
        return {"vector": pick_vector(path, vector, row)}
    value = pick_rows(path, kappa, [row])[row]
    if not isinstance(value, int | float):
        raise InvalidInputError(f"kappa must be a number, but row {row} has {str(value)[:60]!r}.")
    direction = torch.from_numpy(pick_vector(path, mu, row).copy())
    return {"posterior": VonMisesFisher(direction, torch.tensor(float(value)))}
