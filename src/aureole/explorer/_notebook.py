"""The explorer in a notebook: the page of a gallery in memory, in a frame of its own, without a server."""

import html
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.errors import InvalidInputError, MissingPackageError
from aureole.explorer._explorer import (
    choose_columns,
    explorer_data,
    render_explorer,
    write_explorer,
)
from aureole.explorer._gallery_map import GalleryMap, Observer, fit_map
from aureole.match import MatchCalibrator

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
        with _map_progress() as observer:
            return fit_map(index, observer=observer), ""
    except MissingPackageError as error:
        if wanted:
            raise
        return None, f"{error} Then call au.explore again."


@contextmanager
def _map_progress() -> Iterator[Observer]:
    """An observer of ``fit_map`` that keeps one line of stderr up to date, in a terminal or a notebook."""
    shown = sys.stderr.isatty() or "ipykernel" in sys.modules
    last = ""

    def show(step: str, done: int, total: int) -> None:
        nonlocal last
        line = f"map: {step} {100 * done // max(1, total)} %"
        if shown and line != last:
            sys.stderr.write(f"\r{line:<30}")
            sys.stderr.flush()
            last = line

    yield show
    if last:
        sys.stderr.write(f"\r{'':<30}\r")


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
