"""The page of ``aureole near-duplicates``: groups of copies, and how many close pairs chance explains."""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aureole._io import atomic_write
from aureole.data import read_thumbnail
from aureole.errors import InvalidInputError
from aureole.explorer._head import cut_text, versions
from aureole.explorer._page import (
    Gallery,
    Item,
    Section,
    Table,
    format_number,
    format_share,
    render,
)
from aureole.retrieval import NearDuplicates

SHOWN_GROUPS, SHOWN_MEMBERS = 100, 8
_SIDE = 160  # pixels of a thumbnail

_TEXTS = (
    "Two rows are equal if they have the same words in the same order; case and punctuation do not count. They are "
    "near duplicates if one is an edit of the other: some words replaced, dropped, added or moved, as in the examples.",
    "The probability of a pair is that of an edit, as opposed to a coincidence: two people may choose nearly the same "
    "words, above all in short texts. It depends on the number of changed words and on the length of the text. "
    "The vectors select the pairs to compare.",
)
_VECTORS = (
    "Two rows are equal if their vectors are. They are near duplicates if their vectors are as close as those of the "
    "examples of copies, and closer than coincidence explains.",
    "Vectors alone cannot separate an edited copy from another item about the same thing, such as a second photo of "
    "one scene. If the gallery has many of those, precision is lower than expected: check some groups.",
)
_RISK = (
    "Of the reported pairs that are not equal, the expected share of copies is at least the precision that was asked "
    "for. This assumes that coincidences become rarer towards closer pairs at least as fast as they do just beyond the "
    "reach of the examples. It is an expectation, not a bound with a confidence.",
    "The examples only show how close copies are. The number of copies is estimated from the gallery: it is the number "
    "of close pairs in excess of the coincidences.",
)


@dataclass(frozen=True)
class DuplicatesContent:
    """What the page shows besides the pairs.

    ``inputs`` holds the texts or pictures of :func:`shown_rows` by row number (empty for vectors), ``names`` their ids.
    """

    source: str
    rows: int
    precision: float
    examples: str
    kind: str
    inputs: Mapping[int, Any]
    names: Mapping[int, str]


def shown_rows(found: NearDuplicates) -> list[int]:
    """The rows that the page shows: the first members of some groups."""
    groups = (found.groups[at] for at in _shown_groups(found))
    return [int(row) for group in groups for row in group[:SHOWN_MEMBERS]]


def _shown_groups(found: NearDuplicates) -> list[int]:
    """The groups to show: those with edits first, which need a look more than equal rows do."""
    lowest = _lowest_probability(found)
    return sorted(range(len(lowest)), key=lambda at: lowest[at] == 1)[:SHOWN_GROUPS]


def write_near_duplicates_page(
    found: NearDuplicates, out: Path, content: DuplicatesContent
) -> Path:
    """Write the page atomically, and return its path."""
    words = found.changed_words is not None
    reading = "\n\n".join((*(_TEXTS if words else _VECTORS), *_RISK))
    sections = [
        _groups(found, content),
        Section("reading", "What counts as a duplicate", reading, (), ()),
        _closeness(found),
    ]
    page = render(
        "Near duplicates",
        sections,
        about=f"{content.source}: {content.rows:,} rows. {content.examples}",
        results=_results(found, content),
        footer=[versions()],
        footer_title="How this page was made",
    )
    return atomic_write(out, page)


def _results(found: NearDuplicates, content: DuplicatesContent) -> list[str]:
    equal, edited = int(found.equal.sum()), int((~found.equal).sum())
    members = sum(len(group) for group in found.groups)
    same = "1 pair is" if equal == 1 else f"{equal:,} pairs are"
    results = [
        f"{len(found.groups):,} groups with {members:,} rows: {same} equal, {edited:,} are likely edits. "
        f"Keeping one row of each group would remove {members - len(found.groups):,} rows."
    ]
    if edited:
        results.append(
            f"Of the likely edits, {100 * found.expected_precision:.1f} % are expected to be copies "
            f"(asked for: {100 * content.precision:g} %)."
        )
    if found.edited_copies >= 0.5:
        share = found.expected_recall if math.isfinite(found.expected_recall) else 0.0
        results.append(
            f"About {found.edited_copies:,.0f} of the compared pairs are estimated to be edited copies; "
            f"{format_share(share)} of them are reported. A lower precision reports more."
        )
    else:
        results.append("There is no sign of edited copies beyond what coincidence explains.")
    return results


def _groups(found: NearDuplicates, content: DuplicatesContent) -> Section:
    if not found.groups:
        return Section("groups", "Groups", "No duplicates were found.", (), ())
    lowest = _lowest_probability(found)
    galleries = []
    for at in _shown_groups(found):
        group = found.groups[at]
        items = tuple(_item(int(row), content) for row in group[:SHOWN_MEMBERS])
        rest = len(group) - len(items)
        more = f", {rest:,} more in groups.csv" if rest else ""
        title = "equal" if lowest[at] == 1 else f"probability {format_number(lowest[at])} or more"
        galleries.append(Gallery(f"Group {at}: {len(group):,} rows, {title}{more}", items))
    left = len(found.groups) - len(galleries)
    text = "Rows that pairs connect, with the probability of their least likely pair. Equal rows come last."
    if left > 0:
        text += f" {left:,} more groups are in groups.csv."
    return Section("groups", "Groups", text, (), (), galleries=tuple(galleries))


def _lowest_probability(found: NearDuplicates) -> np.ndarray:
    """The lowest probability of a pair of each group."""
    group_of = {int(row): at for at, group in enumerate(found.groups) for row in group}
    lowest = np.ones(len(found.groups))
    for (row, _), probability in zip(
        found.pairs.tolist(), found.probabilities.tolist(), strict=True
    ):
        lowest[group_of[row]] = min(lowest[group_of[row]], probability)
    return lowest


def _item(row: int, content: DuplicatesContent) -> Item:
    note = content.names.get(row, f"row {row}")
    if row not in content.inputs:
        return Item("", note)
    value = content.inputs[row]
    if content.kind == "text":
        return Item(cut_text(value), note)
    try:
        source = value if isinstance(value, bytes) else Path(str(value))
        picture = base64.b64encode(read_thumbnail(source, _SIDE)).decode()
    except InvalidInputError:
        return Item("cannot be read as a picture", note)
    return Item("", note, f"data:image/jpeg;base64,{picture}")


def _closeness(found: NearDuplicates) -> Section:
    words = found.changed_words is not None
    rows = []
    before = 1.0
    for level in found.profile:
        copies = max(0.0, level.pairs - level.coincidences)
        if words:
            name, reported = f"{level.limit:.0f}", _reported(found, level.limit)
        else:
            inside = (found.cosines < before) & (found.cosines >= level.limit) & ~found.equal
            name, reported, before = f"{level.limit:.3f}", int(inside.sum()), level.limit
        chance = f"{level.coincidences:,.1f}"
        rows.append((name, f"{level.pairs:,}", chance, f"{copies:,.0f}", f"{reported:,}"))
    table = Table(
        "Pairs by closeness",
        "Compared pairs that are not equal. Coincidences are continued from pairs beyond the reach of the examples.",
        (
            "changed words" if words else "cosine from",
            "pairs",
            "coincidences",
            "excess",
            "reported",
        ),
        tuple(rows),
    )
    text = (
        "How many pairs are this close, and how many chance explains. With texts, the probability also depends on the "
        "length: a coincidence in a long text is rarer."
        if words
        else "How many pairs are this close, and how many chance explains."
    )
    return Section("closeness", "Copies or coincidences", text, (table,) if rows else (), ())


def _reported(found: NearDuplicates, changed: float) -> int:
    assert found.changed_words is not None
    return int(((found.changed_words == changed) & ~found.equal).sum())
