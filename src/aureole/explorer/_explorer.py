"""The explorer: a page to look at the certainty of a gallery, as one HTML file with some of its items.

The page is built from ``web/`` into ``explorer_page/``, which is part of the package, so that users need no Node.
"""

import base64
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole._io import atomic_write
from aureole.data import find_picture, read_thumbnail
from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, InvalidInputError, MissingInputError
from aureole.evaluation import SAMPLED, kappa_rejection
from aureole.retrieval import (
    CredibleIndex,
    GalleryMatcher,
    Hits,
    MatchCalibrator,
    MatchOptions,
    SearchOptions,
    cap_cosine,
    exact_cosines,
    log_hit_positivity,
    stored_direction,
)

_FOLDER = Path(__file__).parent / "explorer_page"
MASSES = tuple(round(0.01 * percent, 2) for percent in range(50, 100))
_ENDS = 8  # items with the lowest and with the highest kappa of each class
_CLASSES, _NAMED = 40, 100  # classes whose ends are picked, and classes that are listed
_NEIGHBOURS = 6
_SCORED = 48  # pairs of an item whose positivity is kept
_SIDE = 96  # pixels of a picture
_BYTES = 7_000_000  # of all pictures, so that the file stays below 10 MB
_MAX_TEXT = 2000  # characters
_CREDIBLE = SearchOptions(kind="credible")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class _AllItems:
    """All items of a gallery in the order of kappa, lowest first."""

    ids: list[str]
    kappa: np.ndarray
    labels: list[Any] | None


def explorer_data(
    index: CredibleIndex,
    *,
    pictures: Path | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    items: int = 240,
    calibrator: MatchCalibrator | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The data of the page as JSON values: a sample of items from all ranges of kappa, with their nearest neighbours.

    Costs one search per item that is kept, at most about six times ``items``.

    Parameters
    ----------
    index
        The gallery.
    pictures
        A folder with the items' pictures, named by their ids (default: none).
    label_column, text_column
        Payload columns with the labels and the texts (default: none).
    items
        Items to sample (default 240), not counting neighbours.
    calibrator
        Fitted on the directions of the gallery: the page then shows match probabilities instead of cosines.
    progress
        Called with (searches done, searches in total).
    """
    matcher = None if calibrator is None else GalleryMatcher(calibrator, index)
    gallery = _read_items(index, label_column)
    picked = [gallery.ids[place] for place in pick_items(len(gallery.ids), gallery.labels, items)]
    thumbnails, names = _thumbnails(pictures, _with_neighbours(index, picked))
    posterior, payload = index.fetch(names, columns=list(index.schema.columns))
    caps = torch.stack([cap_cosine(posterior, mass) for mass in MASSES], -1)
    counts = _counts(index, posterior, caps.numpy(), progress)
    rank = np.searchsorted(gallery.kappa, posterior.kappa.numpy()) / max(1, len(gallery.ids))
    near = _scored(posterior, index.origin.kappa_pos)
    matches = [{}] * len(names) if matcher is None else _matches(matcher, names, posterior)
    rows = [
        {
            "id": name,
            "kappa": _plain(posterior.kappa[i].item()),
            "label": payload[label_column][i] if label_column else None,
            "text": payload[text_column][i][:_MAX_TEXT] if text_column else None,
            "picture": thumbnails.get(name),
            "payload": {c: _short(v[i]) for c, v in payload.items()},
            "rank": round(float(rank[i]), 6),
            "near": near[i],
            **matches[i],
        }
        for i, name in enumerate(names)
    ]
    about = _about(index, gallery, label_column, text_column, pictures is not None)
    return {
        "format": "aureole-explorer-1",
        "about": about | {"calibrator": None if matcher is None else matcher.about()},
        "rejection": _rejection(index, gallery),
        "masses": list(MASSES),
        "items": rows,
        "mu": _base64(stored_direction(posterior.mu), np.float32),
        "caps": _base64(caps.numpy(), np.float32),
        "counts": _base64(counts, np.int32),
    }


def choose_columns(
    columns: Mapping[str, str], label_column: str | None, text_column: str | None
) -> tuple[str | None, str | None]:
    """(The label column, the text column): the given ones, or those named "label" and "text", if any.

    Examples
    --------
    >>> choose_columns({"label": "text", "price": "number"}, None, None)
    ('label', None)
    """
    for wanted in (label_column, text_column):
        if wanted is not None and wanted not in columns:
            raise InvalidInputError(
                f"payload column {wanted!r} does not exist; the columns are {sorted(columns)}."
            )
    if text_column is not None and columns[text_column] != "text":
        raise InvalidInputError(f"column {text_column!r} holds {columns[text_column]}s, not text.")
    if label_column is None and "label" in columns:
        label_column = "label"
    if text_column is None and columns.get("text") == "text":
        text_column = "text"
    return label_column, text_column


def pick_items(n: int, labels: Sequence[Any] | None, items: int) -> list[int]:
    """Positions of about ``items`` items in the order of kappa: the ends of each class, then evenly spaced ones.

    Examples
    --------
    >>> pick_items(10, None, 4)
    [0, 3, 6, 9]
    >>> pick_items(40, list("ab" * 20), 2)[:9]
    [0, 1, 2, 3, 4, 5, 6, 7, 8]
    """
    chosen: set[int] = set()
    if labels is not None:
        places: dict[Any, list[int]] = {}
        for place, label in enumerate(labels):
            places.setdefault(label, []).append(place)
        for label, _ in Counter(labels).most_common(_CLASSES):
            own = places[label]
            chosen.update(own[:_ENDS] + own[-_ENDS:])
    even = np.linspace(0, n - 1, min(n, max(2, items))) if n else np.zeros(0)
    missing = [int(place) for place in even if int(place) not in chosen]
    remaining = items - len(chosen)
    if remaining > 0:
        chosen.update(missing[:: max(1, math.ceil(len(missing) / remaining))])
    return sorted(chosen)


def page_folder() -> Path:
    """The folder of the built page: index.html, and its script and style in assets/."""
    if not (_FOLDER / "index.html").is_file():
        raise AureoleError(
            f"{_FOLDER} does not contain the built page. Reinstall the package, or run npm ci && npm run build in web."
        )
    return _FOLDER


def render_explorer(data: dict[str, Any], title: str = "aureole") -> str:
    """One HTML page with the script, the style and the data; a content security policy forbids everything else.

    Examples
    --------
    >>> page = render_explorer({"items": [{"id": "</script><b>"}]})
    >>> "</script><b>" in page, "default-src 'none'" in page
    (False, True)
    """
    folder = page_folder() / "assets"
    script = (folder / "explorer.js").read_text("utf-8").replace("</script", "<\\/script")
    style = (folder / "explorer.css").read_text("utf-8").replace("</style", "<\\/style")
    # in JSON these characters only occur in strings, where an escape is equivalent
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    rules = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:"
    )
    name = title.replace("&", "&amp;").replace("<", "&lt;")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{rules}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{name}</title>
<style>{style}</style>
</head>
<body>
<noscript>This page requires JavaScript.</noscript>
<div id="app"></div>
<script type="application/json" id="aureole-data">{text}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def write_explorer(data: dict[str, Any], out: Path, title: str = "aureole") -> Path:
    """Write the page with the data of ``explorer_data`` atomically, and return its path."""
    return atomic_write(out, render_explorer(data, title))


def _read_items(index: CredibleIndex, label_column: str | None) -> _AllItems:
    """All ids, kappas and labels, in one pass over the gallery; ties in kappa are sorted by id."""
    rows: list[tuple[float, str, Any]] = []
    for ids, kappa, payload in index.scan(columns=[label_column] if label_column else []):
        labels = payload[label_column] if label_column else [None] * len(ids)
        rows += zip(kappa.tolist(), ids, labels, strict=True)
    rows.sort(key=lambda row: row[:2])
    kappa = np.array([row[0] for row in rows], np.float32)
    labels = [row[2] for row in rows] if label_column else None
    return _AllItems([row[1] for row in rows], kappa, labels)


def _with_neighbours(index: CredibleIndex, picked: list[str]) -> list[str]:
    """The picked items, then all their first neighbours, all their second ones and so on."""
    if not picked:
        return []
    posterior, _ = index.fetch(picked)
    wide = VonMisesFisher(posterior.mu, torch.zeros_like(posterior.kappa), validate_args=False)
    found = index.search(wide, 1.0, limit=_NEIGHBOURS + 1, options=_CREDIBLE)
    assert isinstance(found, list)
    names = dict.fromkeys(picked)
    for rank in range(_NEIGHBOURS + 1):
        names.update(dict.fromkeys(hits.ids[rank] for hits in found if rank < len(hits)))
    return list(names)


def _thumbnails(folder: Path | None, names: list[str]) -> tuple[dict[str, str], list[str]]:
    """(Thumbnails as data URIs, of the pictures that can be read; the names up to the size limit of the file)."""
    if folder is None:
        return {}, names
    if not folder.is_dir():
        raise MissingInputError(f"the folder of pictures {folder} does not exist. Check the name.")
    root, found, used, fault = folder.resolve(), {}, 0, None
    for place, name in enumerate(names):
        path = find_picture(root, name)
        if path is None:
            continue
        try:
            content = read_thumbnail(path, _SIDE)
        except InvalidInputError as error:  # the item is shown without it
            fault = error
            continue
        uri = "data:image/jpeg;base64," + base64.b64encode(content).decode()
        used += len(uri)
        if used > _BYTES:
            return found, names[:place]
        found[name] = uri
    if not found and fault is not None:
        raise InvalidInputError(f"no picture in {folder} can be read; the last: {fault}") from fault
    if not found and names:
        raise InvalidInputError(
            f"{folder} has no picture of any item; expected for example {names[0]}.png, .jpg or .webp."
        )
    return found, names


def _counts(
    index: CredibleIndex, posterior: VonMisesFisher, caps: np.ndarray, progress: Progress | None
) -> np.ndarray:
    """How many items of the whole gallery are in the cap of each mass, [n, masses]."""
    counts = np.zeros(caps.shape, np.int32)
    for i in range(len(caps)):
        query = VonMisesFisher(posterior.mu[i], posterior.kappa[i], validate_args=False)
        hits = index.search(query, MASSES[-1], exact=True, options=_CREDIBLE)
        assert isinstance(hits, Hits)
        cosine = np.sort(hits.cosine.numpy())
        counts[i] = len(cosine) - np.searchsorted(cosine, caps[i])
        if progress is not None:
            progress(i + 1, len(caps))
    return counts


def _scored(
    posterior: VonMisesFisher, kappa_pos: float | None
) -> list[list[list[int | float | None]]]:
    """The nearest sampled items of each with their log positivity; empty if kappa_pos is unknown."""
    mu = stored_direction(posterior.mu)
    if kappa_pos is None or not len(mu):
        return [[] for _ in mu]
    cosine = np.stack([exact_cosines(own, mu) for own in mu])
    near = np.argsort(-cosine, axis=1, kind="stable")[:, :_SCORED]
    kappa = posterior.kappa.double()
    score = log_hit_positivity(
        torch.from_numpy(np.take_along_axis(cosine, near, 1)).reshape(-1),
        kappa.repeat_interleave(near.shape[1]),
        kappa[torch.from_numpy(near).reshape(-1)],
        kappa_pos,
        posterior.dim,
    )
    values = score.reshape(near.shape).numpy().round(2)
    return [
        [[int(place), _plain(float(value))] for place, value in zip(*pair, strict=True)]
        for pair in zip(near, values, strict=True)
    ]


def _matches(
    matcher: GalleryMatcher, names: list[str], posterior: VonMisesFisher
) -> list[dict[str, Any]]:
    """The match probabilities of the nearest sampled items of each item, and its p-value that nothing matches."""
    if not names:
        return []
    own = stored_direction(posterior.mu)
    searched, everything = matcher.calibrator.map_queries(own), MatchOptions(threshold=0.0)
    entries = []
    for i, name in enumerate(names):
        found = matcher.match(name, everything)
        cosine = exact_cosines(own[i], own)
        cosine[i] = -np.inf
        near = np.argsort(-cosine, kind="stable")[: min(_SCORED, len(names) - 1)]
        probability: list[float] = []
        if len(near):
            cosine = exact_cosines(searched[i], own[near])
            ids = [names[place] for place in near]
            probability = matcher.probabilities(cosine, ids, level=found.level).tolist()
        pairs = zip(near.tolist(), probability, strict=True)
        matches = [[place, round(value, 4)] for place, value in pairs]
        entries.append({"matches": matches, "p_value": round(found.p_value, 4)})
    return entries


def _about(
    index: CredibleIndex,
    gallery: _AllItems,
    label_column: str | None,
    text_column: str | None,
    pictures: bool,
) -> dict[str, Any]:
    from aureole import __version__

    n = len(gallery.ids)
    places = [round(i / 100 * (n - 1)) for i in range(101)] if n else []
    quantiles = [[i / 100, _plain(float(gallery.kappa[at]))] for i, at in enumerate(places)]
    classes = Counter(gallery.labels or []).most_common(_NAMED)
    return {
        "rows": n,
        "dim": index.schema.dim,
        "engine": index.engine,
        "modality": None,
        "kappa_pos": index.origin.kappa_pos,
        "label_column": label_column,
        "text_column": text_column,
        "pictures": pictures,
        "kappa": {"quantiles": quantiles, "median": quantiles[50][1] if n else None},
        "classes": [{"label": label, "count": count} for label, count in classes],
        "version": __version__,
    }


def _rejection(index: CredibleIndex, gallery: _AllItems) -> dict[str, Any]:
    """The rejection curve of items spaced evenly in the order of kappa."""
    n = len(gallery.ids)
    if gallery.labels is None or n < 2:
        return {"available": False, "curve": []}
    places = np.unique(np.linspace(0, n - 1, min(SAMPLED, n)).astype(int))
    posterior, _ = index.fetch([gallery.ids[i] for i in places])
    curve = kappa_rejection(posterior, [gallery.labels[i] for i in places])
    return {"available": True, "curve": curve}


def _base64(values: np.ndarray, dtype: Any) -> str:
    little = np.ascontiguousarray(values, np.dtype(dtype).newbyteorder("<"))
    return base64.b64encode(little.tobytes()).decode()


def _plain(value: float) -> float | None:
    """Infinity as None, as JSON has no infinity."""
    return value if math.isfinite(value) else None


def _short(value: Any) -> Any:
    return value[:_MAX_TEXT] if isinstance(value, str) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
