"""The explorer: a page to look at the certainty of a gallery, as one HTML file or in a notebook, without a server.

The page is built from ``web/`` into ``explorer_page/``, which is part of the package, so that users need no Node.
"""

import base64
import hashlib
import html
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aureole._io import atomic_write
from aureole.caps import CredibleIndex, SearchOptions
from aureole.caps._conformal import coverage_curve
from aureole.data._image_files import find_picture, read_thumbnail
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.engines._schema import exact_cosines, stored_direction
from aureole.errors import AureoleError, InvalidInputError, MissingInputError, MissingPackageError
from aureole.evaluation._rejection import SAMPLED, kappa_rejection
from aureole.explorer._gallery_map import GalleryMap, fit_map
from aureole.explorer._gallery_table import NO_MAP, GalleryTable
from aureole.explorer._neighbourhood_map import MASSES, match_prior, stored_sets
from aureole.match import GalleryMatcher, MatchCalibrator, MatchOptions
from aureole.plot import FAVICON

_FOLDER = Path(__file__).parent / "explorer_page"
_ENDS = 8  # items with the lowest and with the highest kappa of each class
_CLASSES = 40  # classes whose ends are picked
_NEIGHBOURS = 6
_SCORED = 48  # pairs of an item whose match probability is kept
_SIDE = 96  # pixels of a picture
_BYTES = 7_500_000  # of all items with pictures, so that the file stays below 10 MB
_ITEM_BYTES = 3500  # of an item without its picture
_MAX_TEXT = 2000  # characters
_CREDIBLE = SearchOptions(kind="credible")
_NO_MAP = "this file has no map. Run aureole index map GALLERY, then write the file again."
_HEIGHT = 760  # pixels
_LARGEST = 100_000  # items: a larger gallery needs a service
_QUICK = 3000  # items whose map is fitted unless map=False
# a document of its own in a sandboxed frame: neither the page nor the notebook can change the other
_ESM = """
function render({ model, el }) {
  const frame = document.createElement("iframe");
  frame.title = "aureole explorer";
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.style.cssText = "width: 100%; border: 0; border-radius: 10px; display: block;";
  const load = () => { frame.srcdoc = model.get("page"); };
  const size = () => { frame.style.height = `${model.get("height")}px`; };
  model.on("change:page", load);
  model.on("change:height", size);
  load();
  size();
  el.append(frame);
}
export default { render };
"""

Progress = Callable[[int, int], None]


def explorer_data(
    index: CredibleIndex,
    *,
    pictures: Path | Mapping[str, Any] | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    items: int = 240,
    calibrator: MatchCalibrator | None = None,
    map: GalleryMap | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The data of the page as JSON values: a sample of items from all ranges of kappa, with their nearest neighbours.

    Costs one search per item that is kept, at most about six times ``items``.

    Parameters
    ----------
    index
        The gallery.
    pictures
        A folder with the items' pictures, named by their ids, or pictures by id (default: none).
    label_column, text_column
        Payload columns with the labels and the texts (default: none).
    items
        Items to sample (default 240), not counting neighbours.
    calibrator
        Fitted on the directions of the gallery: the page then shows match probabilities instead of cosines.
    map
        The gallery's map, for example from ``fit_map`` (default: the stored one, if any).
    progress
        Called with (searches done, searches in total).
    """
    matcher = None if calibrator is None else GalleryMatcher(calibrator, index)
    table = _table(index, label_column, text_column, map)
    picked = table.ids(pick_items(len(table), table.labels(), items))
    thumbnails, names = _thumbnails(pictures, _with_neighbours(index, picked))
    chosen = sorted(row for row in table.numbers(names) if row is not None)
    names = table.ids(chosen)
    posterior, payload = index.fetch(names, columns=list(index.schema.columns))
    prior = match_prior(table.labels(), len(table))
    matches = [{}] * len(names) if matcher is None else _matches(matcher, names, posterior)
    rows = [
        {
            "id": name,
            "kappa": _plain(posterior.kappa[i].item()),
            "label": payload[label_column][i] if label_column else None,
            "text": payload[text_column][i][:_MAX_TEXT] if text_column else None,
            "picture": thumbnails.get(name),
            "payload": {c: _short(v[i]) for c, v in payload.items()},
            "rank": table.rank(posterior.kappa[i].item()),
            **matches[i],
        }
        for i, name in enumerate(names)
    ]
    about = _about(index, table, label_column, text_column, pictures is not None)
    calibrated = None if matcher is None else matcher.about()
    sets = stored_sets(index, names, posterior, label_column, prior=prior, progress=progress)
    return {
        "format": "aureole-explorer-2",
        "about": about | {"calibrator": calibrated, "prior": prior},
        "rejection": _rejection(index, table, label_column),
        "calibration": coverage_curve(index.conformal),
        "masses": list(MASSES),
        "items": rows,
        "table": table.embed(chosen),
        "sets": sets,
    }


def _table(
    index: CredibleIndex,
    label_column: str | None,
    text_column: str | None,
    given: GalleryMap | None,
) -> GalleryTable:
    """The table of the gallery with the given map, or with the stored one."""
    table = GalleryTable.read(index, label_column, text_column)
    if given is not None:
        same = given.note.dim == index.schema.dim
        if not same or set(given.ids).isdisjoint(table.ids(range(len(table)))):
            what = (
                "none of its ids exists here" if same else "its directions have another dimension"
            )
            raise InvalidInputError(
                f"the map belongs to another gallery: {what}. Make one of this gallery with fit_map."
            )
        table.add_map(given)
    elif table.map["reason"] == NO_MAP:
        table.map = table.map | {"reason": _NO_MAP}
    return table


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
<link rel="icon" href="{FAVICON}">
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


def _thumbnails(
    pictures: Path | Mapping[str, Any] | None, names: list[str]
) -> tuple[dict[str, str], list[str]]:
    """(Thumbnails as data URIs, of the pictures that can be read; the names up to the size limit of the file)."""
    if pictures is None:
        return {}, names
    if isinstance(pictures, Path) and not pictures.is_dir():
        raise MissingInputError(
            f"the folder of pictures {pictures} does not exist. Check the name."
        )
    root = pictures.resolve() if isinstance(pictures, Path) else None
    given = {} if isinstance(pictures, Path) else pictures
    found, used, fault = {}, 0, None
    for place, name in enumerate(names):
        source = given.get(name) if root is None else find_picture(root, name)
        if source is None:
            continue
        try:
            content = read_thumbnail(source, _SIDE)
        except InvalidInputError as error:  # the item is shown without it
            fault = error
            continue
        uri = "data:image/jpeg;base64," + base64.b64encode(content).decode()
        used += len(uri) + _ITEM_BYTES
        if used > _BYTES:
            return found, names[:place]
        found[name] = uri
    if not found and fault is not None:
        where = "" if root is None else f" in {pictures}"
        raise InvalidInputError(f"no picture{where} can be read; the last: {fault}") from fault
    if not found and names and root is not None:
        raise InvalidInputError(
            f"{pictures} has no picture of any item; expected for example {names[0]}.png, .jpg or .webp."
        )
    return found, names


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
        matches = [[place, round(value, 7)] for place, value in pairs]
        entries.append({"matches": matches, "p_value": float(found.p_value)})
    return entries


def _about(
    index: CredibleIndex,
    table: GalleryTable,
    label_column: str | None,
    text_column: str | None,
    pictures: bool,
) -> dict[str, Any]:
    from aureole import __version__

    n = len(table)
    quantiles = [[share, _plain(kappa)] for share, kappa in table.quantiles()]
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
        "classes": [{"label": label, "count": count} for label, count in table.classes],
        "conformal": index.conformal is not None,
        "version": __version__,
    }


def _rejection(
    index: CredibleIndex, table: GalleryTable, label_column: str | None
) -> dict[str, Any]:
    """The rejection curve of items spaced evenly in the order of kappa."""
    if label_column is None or len(table) < 2:
        return {"available": False, "curve": []}
    posterior, payload = index.fetch(table.sample(SAMPLED), columns=[label_column])
    curve = kappa_rejection(posterior, payload[label_column])
    return {"available": True, "curve": curve}


def _plain(value: float) -> float | None:
    """Infinity as None, as JSON has no infinity."""
    return value if math.isfinite(value) else None


def _short(value: Any) -> Any:
    return value[:_MAX_TEXT] if isinstance(value, str) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def explore(
    posterior: VonMisesFisher,
    *,
    images: Iterable[Any] | Path | None = None,
    labels: Iterable[Any] | None = None,
    texts: Iterable[str] | None = None,
    ids: Sequence[str] | None = None,
    kappa_pos: float | None = None,
    calibrator: MatchCalibrator | None = None,
    map: GalleryMap | bool | None = None,
    items: int = 2000,
) -> "Exploration":
    """The explorer of these posteriors, to show in a notebook or to save as one HTML file.

    The page contains a sample of ``items`` items from all ranges of kappa with their neighbours; sets and counts are
    those of all items. Cost: one exact search per item shown. Thumbnails take at most 7 MB.

    Parameters
    ----------
    posterior
        Posteriors of shape (n,), at most 100,000; serve larger galleries with ``aureole serve``.
    images
        A picture for each item (a path, the bytes of a file, a Pillow image, or an array [h, w, 3] of bytes; None for
        no picture), or a folder of pictures named by id.
    labels, texts
        A label and a text for each item (default: none).
    ids
        Distinct names (default: "0", "1", ...).
    kappa_pos
        The concentration of pairs, for match probabilities (default: cosines are shown).
    calibrator
        Fitted on the directions of these posteriors (default: none).
    map
        The map of all items: one from ``fit_map`` or ``read_map``; True to fit one, for 100,000 items in some minutes;
        False for none. Default: fit one if openTSNE is installed and there are at most 3,000 items.
    items
        Items to sample (default 2000).

    Examples
    --------
    >>> import torch
    >>> q = VonMisesFisher(torch.eye(4), torch.tensor([9.0, 20.0, 30.0, 40.0]))
    >>> page = explore(q, labels=["cat", "dog", "cat", "dog"])
    >>> page
    explorer of 4 items, 4 of them on the page
    """
    n = len(posterior.kappa) if posterior.kappa.dim() == 1 else 0
    if not 1 <= n <= _LARGEST:
        raise InvalidInputError(
            f"explore needs posteriors of shape (n,) with n from 1 to {_LARGEST:,}, but the shape is "
            f"{tuple(posterior.kappa.shape)}. Serve larger galleries with aureole serve."
        )
    names = [str(i) for i in range(n)] if ids is None else [str(name) for name in ids]
    if isinstance(images, str):
        images = Path(images)
    elif images is not None and not isinstance(images, Path | Mapping):
        images = list(images)
    labels, texts = (None if values is None else list(values) for values in (labels, texts))
    columns = {"label": labels, "text": texts}
    payload = {name: values for name, values in columns.items() if values is not None}
    given = {"ids": names, "images": images, "labels": labels, "texts": texts}
    for name, values in given.items():
        if isinstance(values, Sequence) and len(values) != n:
            raise InvalidInputError(f"{name} has {len(values)} entries for {n} posteriors.")
    pictures = dict(zip(names, images, strict=True)) if isinstance(images, Sequence) else images
    with CredibleIndex.create("faiss://", posterior, names, payload) as index:
        if kappa_pos is not None:
            index.origin = Origin(kappa_pos)
        label_column, text_column = choose_columns(index.schema.columns, None, None)
        fitted, reason = _map_of(index, n, map)
        data = explorer_data(
            index,
            pictures=pictures,
            label_column=label_column,
            text_column=text_column,
            items=items,
            calibrator=calibrator,
            map=fitted,
        )
    if fitted is None:
        data["table"]["map"] |= {"reason": reason}
    return Exploration(data)


def _map_of(
    index: CredibleIndex, n: int, wanted: GalleryMap | bool | None
) -> tuple[GalleryMap | None, str]:
    """(The map and an empty text, or None and why the page has no map)."""
    if isinstance(wanted, GalleryMap):
        return wanted, ""
    if wanted is False:
        return (
            None,
            "this page was made without a map. To include one, call au.explore with map=True.",
        )
    if wanted is None and n > _QUICK:
        return None, (
            f"fitting a map of more than {_QUICK:,} items takes a while. To include one, call au.explore with map=True."
        )
    try:
        return fit_map(index), ""
    except MissingPackageError as error:
        if wanted:
            raise
        return None, f"{error} Then call au.explore again."


class Exploration:
    """The explorer of a gallery in memory; in Jupyter it is shown as a widget, which needs ``aureole[explore]``.

    Attributes
    ----------
    data
        The data of the page, from ``explorer_data``.
    height
        The height of the widget in pixels (default 760).
    """

    def __init__(self, data: Mapping[str, Any], height: int = _HEIGHT) -> None:
        self.data, self.height = dict(data), height

    def __repr__(self) -> str:
        rows, shown = self.data["about"]["rows"], len(self.data["items"])
        return f"explorer of {rows:,} items, {shown:,} of them on the page"

    def save(self, path: Path | str, title: str = "aureole") -> Path:
        """Write the page as one HTML file atomically, and return its path."""
        return write_explorer(self.data, Path(path), title)

    def widget(self) -> Any:
        """The anywidget with the page."""
        return _widget_class()(page=self._framed(), height=self.height)

    def _framed(self) -> str:
        # without a base, links within a srcdoc document lead to the page around it; addresses of more than 2 MB,
        # such as data: ones, are refused by browsers, and blob: ones have no links in a sandbox
        return render_explorer(self.data).replace("<head>", '<head>\n<base href="about:srcdoc">', 1)

    def _repr_html_(self) -> str:
        """The page in a frame, without a widget: for notebooks exported to HTML."""
        style = f"width: 100%; height: {self.height}px; border: 0; border-radius: 10px"
        page = html.escape(self._framed())
        source = page.encode(
            "ascii", "xmlcharrefreplace"
        ).decode()  # in any encoding of the page around it
        return (
            f'<iframe title="aureole explorer" sandbox="allow-scripts allow-downloads" style="{style}" '
            f'srcdoc="{source}"></iframe>'
        )

    def _repr_mimebundle_(self, **options: Any) -> Any:
        """The widget, or the frame if anywidget is not installed."""
        try:
            return self.widget()._repr_mimebundle_(**options)
        except MissingPackageError:
            return {"text/plain": repr(self), "text/html": self._repr_html_()}


_made: dict[str, Any] = {}


def _widget_class() -> Any:
    """The class of the widget; anywidget is imported when it is first shown."""
    try:
        import anywidget
        import traitlets
    except ImportError as error:
        raise MissingPackageError(
            "the widget needs anywidget: pip install 'aureole[explore]'."
        ) from error
    if "class" not in _made:
        traits = {
            "__module__": __name__,
            "_esm": _ESM,
            "page": traitlets.Unicode().tag(sync=True),
            "height": traitlets.Int(_HEIGHT).tag(sync=True),
        }
        _made["class"] = type("ExplorerWidget", (anywidget.AnyWidget,), traits)
    return _made["class"]
