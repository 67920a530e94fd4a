"""``aureole tags``: list, add, remove, export and import the tags and notes of a gallery's items."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import aureole as au
from aureole.cli._lazy import rich
from aureole.cli._options import AsJson, CommandGroup, Gallery, expanded, option
from aureole.cli._output import is_quiet, print_json, print_table, print_text, rows_bar, table
from aureole.errors import InvalidInputError, MissingInputError

HELP = """Tags, notes, and items to relabel, stored next to a gallery in GALLERY.tags.sqlite.

The explorer shows and changes the same tags. Several people can write at the same time.

Examples:

    aureole tags list gallery.lance
    aureole tags add gallery.lance --id 17 --tag blurred
    aureole tags export gallery.lance --out tags.csv
"""
LIST = """Print all tags and how many items have each, or the entries of some items.

Nothing is changed.

Examples:

    aureole tags list gallery.lance
    aureole tags list gallery.lance --id 17
    aureole tags list gallery.lance --tag blurred --json
"""
ADD = """Add a tag, a note, or the mark that the label is wrong, to items: to all of them or none.

Entries that exist already are not added again.

Examples:

    aureole tags add gallery.lance --id 17 --id 18 --tag blurred
    aureole tags add gallery.lance --ids-from ids.csv --tag blurred
    aureole tags add gallery.lance --id 17 --relabel --new-label ship
    aureole tags add gallery.lance --id 17 --duplicate-of 4
"""
REMOVE = """Remove a tag or other entries from items.

Removed entries return with `aureole tags undo`.

Examples:

    aureole tags remove gallery.lance --id 17 --tag blurred
    aureole tags remove gallery.lance --id 17 --relabel
"""
UNDO = """Undo the last change of the tags, or the change with a number, which every change prints.

Entries that others have changed since stay as they are.

Examples:

    aureole tags undo gallery.lance
    aureole tags undo gallery.lance --change 12
"""
EXPORT = """Write all entries to a CSV, JSON-lines or Parquet file, or the queue of items to relabel.

With --queue, the file has the items that need relabelling, most urgent first: how many of the neighbours in the cap
have another label, and which. In CSV, texts that a spreadsheet could read as a formula get a leading apostrophe.

Examples:

    aureole tags export gallery.lance --out tags.parquet
    aureole tags export gallery.lance --queue --label-column label --out q.csv
"""
IMPORT = """Add the entries of an exported table, or of the tags downloaded from a report, to a gallery.

Authors and times are kept; entries that exist already are skipped. The table has the columns id, kind (tag, note,
relabel or duplicate) and value, and optionally author and time.

Examples:

    aureole tags import gallery.lance tags.csv
    aureole tags import gallery.lance tags.jsonl --skip-unknown
"""
_SHOWN = 50  # entries that are listed

tags = typer.Typer(
    cls=CommandGroup,
    help=HELP,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)
_FileOption = Option(
    "--tags", help="File of the tags (default: GALLERY.tags.sqlite).", metavar="FILE"
)
TagsFile = Annotated[Path | None, _FileOption]
_Author = Annotated[str, Option(help="Who makes the change.")]


@dataclass(frozen=True)
class ItemChoice:
    """The items."""

    id: list[str] | None = option("Id of an item; repeatable.")
    ids_from: Path | None = option("Table with the ids, in a column named id.", metavar="FILE")

    def names(self) -> list[str]:
        """The distinct ids, in order; raises without any."""
        names = list(self.id or [])
        if self.ids_from is not None:
            au.data.check_columns(self.ids_from, "id")
            names += [str(name) for name in au.data.read_column(self.ids_from, "id").tolist()]
        if not names:
            raise typer.BadParameter("name the items with --id or --ids-from.")
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class EntryChoice:
    """What to add or remove: one of these."""

    tag: str | None = option("A tag.")
    note: str | None = option("A note.")
    relabel: bool = option("The label is wrong.", False)
    new_label: str | None = option("With --relabel: the label it should have.")
    duplicate_of: str | None = option("Id of the item that this one duplicates.", metavar="ID")

    def kind_and_value(self) -> tuple[au.retrieval.TagKind, str]:
        """(Kind, value); raises unless exactly one is chosen."""
        chosen: list[tuple[au.retrieval.TagKind, str]] = []
        if self.tag is not None:
            chosen.append(("tag", self.tag))
        if self.note is not None:
            chosen.append(("note", self.note))
        if self.relabel:
            chosen.append(("relabel", self.new_label or ""))
        if self.duplicate_of is not None:
            chosen.append(("duplicate", self.duplicate_of))
        if len(chosen) != 1:
            raise typer.BadParameter("pass one of --tag, --note, --relabel and --duplicate-of.")
        if self.new_label is not None and not self.relabel:
            raise typer.BadParameter("--new-label needs --relabel.")
        return chosen[0]


@tags.command("list", help=LIST)
@expanded
def list_(
    gallery: Gallery,
    id: Annotated[list[str] | None, Option(help="Show this item; repeatable.")] = None,
    tag: Annotated[str | None, Option(help="Show the items with this tag.")] = None,
    file: TagsFile = None,
    as_json: AsJson = False,
) -> None:
    """List tags; ``LIST`` is the text users see."""
    with _open(gallery, file, read_only=True) as opened:
        if id is None and tag is None:
            _show_counts(opened, gallery, as_json=as_json)
            return
        kind: au.retrieval.TagKind | None = None if tag is None else "tag"
        names = None if id is None else list(dict.fromkeys(id))
        entries = opened.entries(ids=names, kind=kind, value=tag)
        if as_json:
            print_json({"gallery": gallery, "entries": [asdict(entry) for entry in entries]})
            return
        shown = list(islice(entries, _SHOWN))
        left = sum(1 for _ in entries)
        _show_entries(shown)
        if left:
            print_text(f"… and {left:,} more; aureole tags export writes all of them.")


@tags.command("add", help=ADD)
@expanded
def add(
    gallery: Gallery,
    items: ItemChoice,
    entry: EntryChoice,
    author: _Author = "",
    file: TagsFile = None,
    as_json: AsJson = False,
) -> None:
    """Add entries; ``ADD`` is the text users see."""
    names, (kind, value) = items.names(), entry.kind_and_value()
    with (
        _open(gallery, file) as opened,
        au.retrieval.CredibleIndex.open(gallery) as index,
    ):
        index.fetch(list(dict.fromkeys([*names, value])) if kind == "duplicate" else names)
        _show_change(opened, opened.add(names, kind, value, author=author), as_json=as_json)


@tags.command("remove", help=REMOVE)
@expanded
def remove(
    gallery: Gallery,
    items: ItemChoice,
    entry: EntryChoice,
    author: _Author = "",
    file: TagsFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove entries; ``REMOVE`` is the text users see."""
    names, (kind, value) = items.names(), entry.kind_and_value()
    with _open(gallery, file) as opened:
        wanted = value if value or kind != "relabel" else None
        _show_change(opened, opened.remove(names, kind, wanted, author=author), as_json=as_json)


@tags.command("undo", help=UNDO)
def undo(
    gallery: Gallery,
    change: Annotated[int | None, Option(min=1, help="Number of the change.")] = None,
    author: _Author = "",
    file: TagsFile = None,
    as_json: AsJson = False,
) -> None:
    """Undo a change; ``UNDO`` is the text users see."""
    with _open(gallery, file) as opened:
        _show_change(opened, opened.undo(change, author=author), as_json=as_json)


@tags.command("export", help=EXPORT)
@expanded
def export(
    gallery: Gallery,
    out: Annotated[Path, Option(help="File that ends in .csv, .jsonl or .parquet.")],
    queue: Annotated[bool, Option("--queue", help="Only the items to relabel, in order.")] = False,
    label_column: Annotated[
        str | None, Option(help="With --queue: payload column with the label of an item.")
    ] = None,
    text_column: Annotated[
        str | None, Option(help="With --queue: payload column with the text of an item.")
    ] = None,
    file: TagsFile = None,
    as_json: AsJson = False,
) -> None:
    """Export entries; ``EXPORT`` is the text users see."""
    started = time.monotonic()
    missing: list[str] = []
    with _open(gallery, file, read_only=True) as opened:
        if queue:
            with (
                au.retrieval.CredibleIndex.open(gallery) as index,
                rows_bar("searching", shown=not is_quiet(as_json=as_json)) as observer,
            ):
                index.schema.check_columns(label_column, text_column)
                found = au.retrieval.relabel_queue(
                    index,
                    opened,
                    label_column=label_column,
                    text_column=text_column,
                    observer=observer,
                )
            columns, missing = found.columns, found.missing
        else:
            columns = au.retrieval.tag_table(opened.entries())
    au.retrieval.write_tag_table(out, columns)
    facts: dict[str, Any] = {"file": str(out), "rows": len(columns["id"]), "missing": len(missing)}
    if as_json:
        print_json(facts | {"seconds": time.monotonic() - started})
        return
    print_text(f"{facts['rows']:,} rows in {out}")
    if missing:
        print_text(f"left out: {len(missing):,} items that the gallery no longer has")


@tags.command("import", help=IMPORT)
def import_(
    gallery: Gallery,
    entries: Annotated[Path, Argument(help="Table of entries.", metavar="TABLE")],
    skip_unknown: Annotated[
        bool, Option("--skip-unknown", help="Skip items that the gallery does not have.")
    ] = False,
    author: _Author = "",
    file: TagsFile = None,
    as_json: AsJson = False,
) -> None:
    """Import entries; ``IMPORT`` is the text users see."""
    found = au.retrieval.read_tag_table(entries)
    with (
        _open(gallery, file) as opened,
        au.retrieval.CredibleIndex.open(gallery) as index,
    ):
        known = _known(index, {name for entry in found for name in _ids_of(entry)})
        kept = [entry for entry in found if all(name in known for name in _ids_of(entry))]
        if len(kept) < len(found) and not skip_unknown:
            lost = next(name for entry in found for name in _ids_of(entry) if name not in known)
            raise InvalidInputError(
                f"id {lost[:60]!r} of {entries} does not exist in the gallery. Add --skip-unknown to import the "
                f"other {len(kept):,} of {len(found):,} entries."
            )
        change = opened.load(kept, author=author)
        skipped = len(found) - len(kept)
        _show_change(opened, change, as_json=as_json, **({"skipped": skipped} if skipped else {}))


def _open(gallery: str, file: Path | None, *, read_only: bool = False) -> au.retrieval.Tags:
    """The tags of a gallery, which must exist if they lie next to it."""
    opened = au.retrieval.Tags.of_gallery(gallery, file, read_only=read_only)
    if file is None and not Path(gallery).exists():
        raise MissingInputError(f"there is no gallery at {gallery}. Check the path.")
    return opened


def _ids_of(entry: au.retrieval.Tag) -> Sequence[str]:
    return (entry.id, entry.value) if entry.kind == "duplicate" else (entry.id,)


def _known(index: au.retrieval.CredibleIndex, names: set[str]) -> set[str]:
    """Which of these ids the gallery has: one pass over the ids."""
    return {name for ids, _, _ in index.scan() for name in ids if name in names}


def _show_change(
    opened: au.retrieval.Tags, change: au.retrieval.TagChange, *, as_json: bool, **more: int
) -> None:
    if as_json:
        print_json({"file": str(opened.file), **asdict(change), **more})
        return
    number = f"change {change.number}; undo it with aureole tags undo"
    entries = "1 entry" if change.changed == 1 else f"{change.changed:,} entries"
    print_text(f"{entries} changed ({number})")
    for name, count in more.items():
        print_text(f"{name}: {count:,}")


def _show_counts(opened: au.retrieval.Tags, gallery: str, *, as_json: bool) -> None:
    counts = opened.counts()
    if as_json:
        listed = [{"kind": kind, "value": value, "count": count} for kind, value, count in counts]
        print_json({"gallery": gallery, "file": str(opened.file), "counts": listed})
    elif not counts:
        print_text(f"no tags in {opened.file}")
    else:
        shown = table(f"tags in {opened.file.name}", "tag", "items")
        for kind, value, count in counts:
            name = value if kind == "tag" else au.retrieval.describe({"kind": kind, "value": value})
            shown.add_row(_plain(name), f"{count:,}")
        print_table(shown)


def _show_entries(entries: Sequence[au.retrieval.Tag]) -> None:
    shown = table("entries", "item", "entry", "author", "time")
    for entry in entries:
        text = f"note: {entry.value}" if entry.kind == "note" else au.retrieval.describe(entry)
        shown.add_row(_plain(entry.id), _plain(text), _plain(entry.author), entry.time[:10])
    print_table(shown)


def _plain(text: str) -> Any:
    """A text without markup, also without control characters of a terminal."""
    return rich.text.Text("".join(c if c.isprintable() or c == "\n" else "�" for c in text))
