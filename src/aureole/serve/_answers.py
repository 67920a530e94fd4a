"""Answers: what is said of items, of the members of a set, and why they are in it."""

from collections import Counter
from typing import Any
from urllib.parse import quote

from aureole.distributions import VonMisesFisher
from aureole.explorer import MASSES
from aureole.retrieval import Hits, explain_hits
from aureole.serve._pictures import Pictures

_MOST = 10  # classes of a set that are told


class Teller:
    """What is known of items beside their posteriors: pictures, and the columns with their labels and texts."""

    def __init__(
        self, pictures: Pictures | None, label_column: str | None, text_column: str | None
    ) -> None:
        self._pictures, self._label, self._text = pictures, label_column, text_column

    def tell(self, name: str, kappa: float, payload: dict[str, Any]) -> dict[str, Any]:
        """What is said of an item."""
        has = self._pictures is not None and self._pictures.has(name)
        text = payload.get(self._text) if self._text else None
        return {
            "id": name,
            "kappa": kappa,
            "label": payload.get(self._label) if self._label else None,
            "text": None if text is None else str(text),
            "picture": f"/v1/pictures/{quote(name, safe='')}" if has else None,
            "payload": payload,
        }

    def tell_hits(self, hits: Hits) -> list[dict[str, Any]]:
        """What is said of the members of a set."""
        cosine, kappa = hits.cosine.tolist(), hits.kappa.tolist()
        empty = [None] * len(hits)
        positivity = empty if hits.log_positivity is None else hits.log_positivity.tolist()
        positive = empty if hits.probability is None else hits.probability.tolist()
        entries = []
        for i, name in enumerate(hits.ids):
            payload = {column: values[i] for column, values in hits.payload.items()}
            entry = self.tell(name, kappa[i], payload)
            entry["cosine"], entry["positivity"] = cosine[i], positivity[i]
            entry["positive"] = positive[i]
            entries.append(entry)
        return entries


def add_reasons(entries: list[dict[str, Any]], hits: Hits, posterior: VonMisesFisher) -> None:
    """Say in each entry why the hit is in the set."""
    why = explain_hits(hits, posterior)
    chance = None if why.latent_in_cap is None else why.latent_in_cap.tolist()
    (cap,) = why.cap_degrees.tolist()
    for i, (entry, angle) in enumerate(zip(entries, why.degrees.tolist(), strict=True)):
        entry["latent_in_cap"] = None if chance is None else chance[i]
        entry["explanation"] = reason(entry, angle, cap)


def reason(entry: dict[str, Any], degrees: float, cap_degrees: float) -> str:
    """Why a hit is in the set, in one sentence.

    Examples
    --------
    >>> reason({"kappa": 50.0, "positivity": 1.25, "positive": None, "latent_in_cap": 0.93}, 12.34, 20.0)
    'It lies 12.3° from the query, within its cap of 20.0°; its own latent (κ 50) is in the cap with probability 0.93; it is e^1.25 times as likely a partner as chance.'
    """  # noqa: E501
    text = f"It lies {degrees:.1f}° from the query, within its cap of {cap_degrees:.1f}°"
    if entry["latent_in_cap"] is not None:
        text += (
            f"; its own latent (κ {entry['kappa']:.4g}) is in the cap with probability "
            f"{entry['latent_in_cap']:.2f}"
        )
    if entry["positivity"] is not None:
        text += f"; it is e^{entry['positivity']:.2f} times as likely a partner as chance"
    if entry["positive"] is not None:
        text += f", P(positive) {entry['positive']:.3g}"
    return f"{text}."


def tell_classes(labels: list[Any]) -> list[dict[str, Any]]:
    """How many members have each label, the most frequent first.

    Examples
    --------
    >>> tell_classes(["cat", "dog", "cat"])
    [{'label': 'cat', 'count': 2}, {'label': 'dog', 'count': 1}]
    """
    return [{"label": label, "count": n} for label, n in Counter(labels).most_common(_MOST)]


def tell_caps(cosines: list[float]) -> list[dict[str, float]]:
    """The caps of ``MASSES`` by their least cosines."""
    return [{"mass": m, "cosine": c} for m, c in zip(MASSES, cosines, strict=True)]
