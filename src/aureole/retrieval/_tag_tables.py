"""Tables of tags: exports that spreadsheets can open safely, imports, and the queue of items to relabel."""

import math
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from aureole.data import check_columns, read_column, write_columns
from aureole.errors import InvalidInputError
from aureole.retrieval._index import CredibleIndex
from aureole.retrieval._tags import Tag, Tags

TagFormat = Literal["csv", "jsonl", "parquet"]
COLUMNS = ("id", "kind", "value", "author", "time")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20", "'")
_NEIGHBOURS = 100  # members of a cap that suggest a class
_BATCH = 64  # items that are searched together


def tag_table(entries: Iterable[Tag]) -> dict[str, np.ndarray]:
    """Entries as columns of text: id, kind, value, author and time (UTC).

    Examples
    --------
    >>> tag_table([Tag("ant", "tag", "blurred")])["value"].tolist()
    ['blurred']
    """
    rows = [(each.id, each.kind, each.value, each.author, each.time) for each in entries]
    return {name: _text([row[i] for row in rows]) for i, name in enumerate(COLUMNS)}


def write_tag_table(path: Path | str, columns: Mapping[str, np.ndarray]) -> Path:
    """Write columns to a CSV, JSON-lines or Parquet file, atomically, and return its path.

    In CSV, a text that a spreadsheet could read as a formula gets a leading apostrophe, which :func:`read_tag_table`
    removes; the other formats are exact.
    """
    path = Path(path)
    if path.suffix in (".csv", ".tsv"):
        columns = {
            name: _text([guard_formula(each) for each in column.tolist()])
            if column.dtype.kind == "O"
            else column
            for name, column in columns.items()
        }
    return write_columns(path, columns)


def encode_tag_table(columns: Mapping[str, np.ndarray], format: TagFormat) -> bytes:
    """The content of the file that ``write_tag_table`` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return write_tag_table(Path(folder) / f"tags.{format}", columns).read_bytes()


def read_tag_table(path: Path | str) -> list[Tag]:
    """The entries of a table with the columns id, kind and value, and optionally author and time."""
    path = Path(path)
    check_columns(path, *COLUMNS[:3])
    guarded = path.name.lower().endswith((".csv", ".tsv", ".csv.gz", ".tsv.gz"))
    columns = []
    for name in COLUMNS:
        values: Iterable[Any] = []
        with suppress(InvalidInputError) if name in COLUMNS[3:] else nullcontext():
            values = read_column(path, name).tolist()
        texts = ["" if value is None else str(value) for value in values]
        columns.append([unguard_formula(text) for text in texts] if guarded else texts)
    rows = len(columns[0])
    columns = [column or [""] * rows for column in columns]
    return [Tag(*row) for row in zip(*columns, strict=True)]


def guard_formula(text: str) -> str:
    r"""The text with a leading apostrophe if a spreadsheet could read it as a formula.

    Examples
    --------
    >>> guard_formula('=HYPERLINK("http://example.org")'), guard_formula("a cat"), guard_formula("'quoted'")
    ('\'=HYPERLINK("http://example.org")', 'a cat', "''quoted'")
    >>> unguard_formula(guard_formula("-1")), unguard_formula("it's")
    ('-1', "it's")
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def unguard_formula(text: str) -> str:
    """The inverse of ``guard_formula``."""
    return text[1:] if text.startswith("'") and text[1:].startswith(_FORMULA) else text


@dataclass(frozen=True)
class RelabelQueue:
    """The items whose label needs a look, most urgent first; see :func:`relabel_queue`.

    Attributes
    ----------
    entries
        The "relabel" entry of each item.
    columns
        The table to export.
    missing
        Ids that are tagged but no longer in the gallery.
    """

    entries: list[Tag]
    columns: dict[str, np.ndarray]
    missing: list[str]

    def __len__(self) -> int:
        return len(self.entries)


def relabel_queue(
    index: CredibleIndex,
    tags: Tags,
    *,
    label_column: str | None = None,
    text_column: str | None = None,
    mass: float = 0.95,
    observer: Callable[[int], None] | None = None,
) -> RelabelQueue:
    """The items tagged as "relabel", with what their neighbours suggest, most urgent first.

    The up to 100 nearest other members of an item's cap (predictive if the gallery has a ``kappa_pos``) vote with
    equal weight. ``priority`` is the share of them that have another label than the item; ``suggested`` is the most
    frequent label among them, and ``classes`` lists the three most frequent with their shares. Without a label column,
    or with an empty cap, the priority is NaN; ties are ordered by kappa, the most certain first. Cost: one search per
    item.

    Parameters
    ----------
    index
        The gallery.
    tags
        Its tags.
    label_column
        Payload column of labels.
    text_column
        Payload column of texts, exported as ``text``.
    mass
        Mass of the cap.
    observer
        Called with the number of items done.
    """
    entries = {entry.id: entry for entry in tags.entries(kind="relabel")}
    notes: dict[str, list[str]] = {}
    for note in tags.entries(kind="note"):
        notes.setdefault(note.id, []).append(note.value)
    rows: list[dict[str, Any]] = []
    missing: list[str] = []
    for batch in _batches(list(entries)):
        found, lost = queue_rows(index, batch, label_column, text_column, mass=mass)
        rows += found
        missing += lost
        if observer is not None:
            observer(len(rows) + len(missing))
    return order_queue(rows, entries, notes, missing)


def queue_rows(
    index: CredibleIndex,
    ids: Sequence[str],
    label_column: str | None,
    text_column: str | None,
    *,
    mass: float = 0.95,
) -> tuple[list[dict[str, Any]], list[str]]:
    """(The rows of the queue for some items, the ids that do not exist)."""
    wanted = [name for name in (label_column, text_column) if name is not None]
    names = list(ids)
    try:
        posterior, payload = index.fetch(names, columns=wanted)
    except InvalidInputError:
        if len(names) == 1:
            return [], names
        parts = [queue_rows(index, [each], label_column, text_column, mass=mass) for each in names]
        return [row for rows, _ in parts for row in rows], [id for _, lost in parts for id in lost]
    hits: list[Any] = [None] * len(names)
    if label_column is not None:
        found = index.search(posterior, mass, limit=_NEIGHBOURS + 1, columns=[label_column])
        hits = found if isinstance(found, list) else [found]
    rows = []
    for i, name in enumerate(names):
        row: dict[str, Any] = {"id": name, "kappa": float(posterior.kappa[i]), "text": ""}
        row |= {"label": "", "priority": float("nan"), "suggested": "", "classes": ""}
        if text_column is not None:
            row["text"] = str(payload[text_column][i])
        if label_column is not None:
            label = payload[label_column][i]
            row["label"] = str(label)
            votes = [
                str(other)
                for id, other in zip(hits[i].ids, hits[i].payload[label_column], strict=True)
                if id != name
            ][:_NEIGHBOURS]
            row |= _suggestion(str(label), votes)
        rows.append(row)
    return rows, []


def order_queue(
    rows: list[dict[str, Any]],
    entries: Mapping[str, Tag],
    notes: Mapping[str, list[str]],
    missing: Sequence[str],
) -> RelabelQueue:
    """The queue of rows, most urgent first."""
    # NaN last; then the most certain first
    urgency = [-1.0 if math.isnan(row["priority"]) else row["priority"] for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (-urgency[i], -rows[i]["kappa"], rows[i]["id"]))
    rows = [rows[i] for i in order]
    own = [entries[row["id"]] for row in rows]
    columns: dict[str, np.ndarray] = {"id": _text([row["id"] for row in rows])}
    columns["priority"] = np.array([round(row["priority"], 4) for row in rows], np.float64)
    columns["kappa"] = np.array([row["kappa"] for row in rows], np.float32)
    columns["label"] = _text([row["label"] for row in rows])
    columns["new_label"] = _text([entry.value for entry in own])
    for name in ("suggested", "classes", "text"):
        columns[name] = _text([row[name] for row in rows])
    columns["notes"] = _text([" | ".join(notes.get(row["id"], [])) for row in rows])
    columns["author"] = _text([entry.author for entry in own])
    columns["time"] = _text([entry.time for entry in own])
    return RelabelQueue(own, columns, list(missing))


def _suggestion(label: str, votes: list[str]) -> dict[str, Any]:
    """What the labels of the members of a cap say about an item's own label."""
    if not votes:
        return {}
    counts: dict[str, int] = {}
    for vote in votes:
        counts[vote] = counts.get(vote, 0) + 1
    # the nearest decides between equally frequent labels
    ranked = sorted(counts.items(), key=lambda each: -each[1])[:3]
    classes = ", ".join(f"{name} {count / len(votes):.0%}" for name, count in ranked)
    priority = 1 - counts.get(label, 0) / len(votes)
    return {"priority": priority, "suggested": ranked[0][0], "classes": classes}


def _batches(ids: list[str]) -> Iterator[list[str]]:
    return (ids[i : i + _BATCH] for i in range(0, len(ids), _BATCH))


def _text(values: Sequence[str]) -> np.ndarray:
    """Texts as a column; an empty one is of text, too."""
    if not values:
        return np.array([], "U1")
    column = np.empty(len(values), object)
    column[:] = values
    return column
