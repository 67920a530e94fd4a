"""Tags, notes and suspected errors of labels: a file of SQLite next to the gallery, safe for several users at once."""

import os
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from aureole._io import check_local, reporting_writes
from aureole.errors import AureoleError, DamagedGalleryError, InvalidInputError, WriteError
from aureole.retrieval._schema import check_ids
from aureole.retrieval._store import is_local, shown_address

TagKind = Literal["tag", "note", "relabel", "duplicate"]
KINDS: tuple[str, ...] = get_args(TagKind)
SUFFIX = ".tags.sqlite"
PER_ITEM = 100  # entries of an item
MOST_TAGS = 1_000  # distinct tags
MOST_ENTRIES = 10_000_000  # with removed ones
LONGEST = {"tag": 64, "note": 4_000, "relabel": 256, "author": 64}  # characters
_APPLICATION, _VERSION = 0x41755467, 1
_WAIT = 20.0  # seconds to wait for another writer
_PARAMETERS = 500  # ids of one statement
_JOINERS = "\u200c\u200d"  # format characters that words of some scripts need
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_SINGLE = ("relabel", "duplicate")  # kinds of which an item has one entry, which a new one replaces
_SCHEMA = (
    "CREATE TABLE changes (number INTEGER PRIMARY KEY, action TEXT NOT NULL, author TEXT NOT NULL, "
    "time TEXT NOT NULL, undone INTEGER)",
    "CREATE TABLE entries (item TEXT NOT NULL, kind TEXT NOT NULL, value TEXT NOT NULL, author TEXT NOT NULL, "
    "time TEXT NOT NULL, added INTEGER NOT NULL, removed INTEGER, restored INTEGER)",
    "CREATE UNIQUE INDEX live ON entries (item, kind, value) WHERE removed IS NULL",
    "CREATE INDEX by_value ON entries (kind, value) WHERE removed IS NULL",
    "CREATE INDEX by_added ON entries (added)",
    "CREATE INDEX by_removed ON entries (removed)",
    "CREATE INDEX by_restored ON entries (restored)",
)
_FIELDS = "item, kind, value, author, time"


@dataclass(frozen=True)
class Tag:
    """What somebody noted about an item.

    Attributes
    ----------
    id
        Id of the item.
    kind
        "tag", "note", "relabel" (its label is wrong) or "duplicate" (of another item).
    value
        The tag, the text of the note, the suggested label (may be empty), or the id of the other item.
    author
        Who added it; may be empty.
    time
        When, in UTC, such as "2026-01-31T12:00:00Z".
    """

    id: str
    kind: str
    value: str
    author: str = ""
    time: str = ""


@dataclass(frozen=True)
class TagChange:
    """A change of the tags: its number, with which ``Tags.undo`` reverts it, and how many entries it changed."""

    number: int
    changed: int


class Tags:
    """The tags of a gallery's items, in one file of SQLite. Thread-safe, and safe for several processes.

    A change is atomic: all of it is stored when the call returns, or none of it; a killed process loses nothing that
    was acknowledged. Writers wait for each other for at most 20 seconds. The file is created by the first change. It
    must be on a local disk, because SQLite's write-ahead log needs shared memory. Removed entries stay in the file, so
    every change can be undone.

    Cost: a change of 10,000 items takes a fraction of a second.

    Parameters
    ----------
    file
        Path of the file, see :meth:`of_gallery`.
    read_only
        Refuse changes.

    Examples
    --------
    >>> import tempfile
    >>> with Tags(f"{tempfile.mkdtemp()}/gallery.lance.tags.sqlite") as tags:
    ...     change = tags.add(["ant", "bee"], "tag", "blurred", author="Ann")
    ...     _ = tags.add(["bee"], "relabel", "wasp")
    ...     tags.counts()
    ...     [entry.value for entry in tags.entries(ids=["bee"])]
    ...     _ = tags.undo(change.number)
    ...     tags.counts()
    [('relabel', 'wasp', 1), ('tag', 'blurred', 2)]
    ['wasp', 'blurred']
    [('relabel', 'wasp', 1)]
    """

    def __init__(self, file: str | os.PathLike[str], *, read_only: bool = False) -> None:
        check_local(os.fspath(file))
        self.file, self.read_only = Path(file), read_only
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None

    @classmethod
    def of_gallery(
        cls, gallery: str, file: str | os.PathLike[str] | None = None, *, read_only: bool = False
    ) -> "Tags":
        """The tags of the gallery at an address: in ``GALLERY.tags.sqlite``, or in ``file``.

        Galleries in a database or an object store need ``file``.

        Examples
        --------
        >>> Tags.of_gallery("photos.lance").file.name
        'photos.lance.tags.sqlite'
        """
        if file is None:
            if not is_local(gallery):
                raise InvalidInputError(
                    f"{shown_address(gallery)} is not a local path: name a local file for its tags (--tags)."
                )
            file = gallery.rstrip("/") + SUFFIX
        return cls(file, read_only=read_only)

    def __enter__(self) -> "Tags":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Tags({str(self.file)!r})"

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def add(
        self, ids: Sequence[str], kind: TagKind, value: str = "", *, author: str = ""
    ) -> TagChange:
        """Add one entry to each item: all or none. Entries that exist already do not count.

        An item has at most 100 entries, and at most one "relabel" and one "duplicate": a new one replaces it.
        """
        text, who = check_value(kind, value), _checked(author, "author", "the author")
        names = check_ids(ids)
        if kind == "duplicate" and text in names:
            raise InvalidInputError(f"{text!r} cannot be a duplicate of itself.")
        entries = [(name, kind, text, who, "", None, None) for name in names]
        with self._change(f"add {_named(kind, text)}", who) as change:
            changed = self._insert(change, entries)
        return TagChange(change.number, changed)

    def remove(
        self, ids: Sequence[str], kind: TagKind, value: str | None = None, *, author: str = ""
    ) -> TagChange:
        """Remove entries of this kind from items, all of them or those with this value."""
        text = None if value is None else check_value(kind, value)
        names, who = check_ids(ids), _checked(author, "author", "the author")
        _check_kind(kind)
        with self._change(f"remove {_named(kind, text or '')}", who) as change:
            change.stage((name, kind, text or "", who, "", None, None) for name in names)
            changed = change.run(
                "UPDATE entries SET removed = ? WHERE rowid IN ("
                "SELECT e.rowid FROM staged s CROSS JOIN entries e INDEXED BY live "
                "ON e.item = s.item AND e.kind = s.kind AND e.removed IS NULL WHERE ? OR e.value = s.value)",
                (change.number, text is None),
            ).rowcount
        return TagChange(change.number, changed)

    def undo(self, number: int | None = None, *, author: str = "") -> TagChange:
        """Revert a change (default: the last that has not been undone); raise if it has been undone already."""
        who = _checked(author, "author", "the author")
        with self._change("undo", who) as change:
            reverted = change.find_undoable(number)
            change.run("UPDATE changes SET undone = ? WHERE number = ?", (change.number, reverted))
            found = change.run(
                "UPDATE entries SET removed = ? WHERE removed IS NULL AND (added = ? OR restored = ?)",
                (change.number, reverted, reverted),
            )
            changed = found.rowcount
            # what the change removed, but not what it had added itself
            back = change.run(
                f"SELECT {_FIELDS}, added, ? FROM entries "  # noqa: S608
                "WHERE removed = ? AND added <> ? AND restored IS NOT ?",
                (change.number, reverted, reverted, reverted),
            )
            changed += self._insert(change, back.fetchall(), replace=False)
        return TagChange(change.number, changed)

    def load(self, entries: Iterable[Tag], *, author: str = "") -> TagChange:
        """Add entries with their authors and times, such as those of an export, in one change."""
        rows = []
        for place, entry in enumerate(entries):
            check_ids([entry.id])
            if entry.time and not _TIME.fullmatch(entry.time):
                raise InvalidInputError(
                    f"entry {place}: the time must be like 2026-01-31T12:00:00Z, but is {entry.time[:40]!r}."
                )
            value = check_value(entry.kind, entry.value)
            if entry.kind == "duplicate" and value == entry.id:
                raise InvalidInputError(f"entry {place}: {value!r} cannot duplicate itself.")
            who = _checked(entry.author, "author", "the author")
            rows.append((entry.id, entry.kind, value, who, entry.time, None, None))
        who = _checked(author, "author", "the author")
        with self._change("import", who) as change:
            changed = self._insert(change, rows)
        return TagChange(change.number, changed)

    def counts(self) -> list[tuple[str, str, int]]:
        """(Kind, value, number of items) of every tag and suggested label; notes and duplicates have no value."""
        found = self._read(
            "SELECT kind, CASE WHEN kind IN ('tag', 'relabel') THEN value ELSE '' END AS name, "
            "COUNT(DISTINCT item) FROM entries WHERE removed IS NULL GROUP BY 1, 2 ORDER BY 1, 3 DESC, 2 LIMIT ?",
            (2 * MOST_TAGS,),
        )
        return [(str(kind), str(value), int(count)) for kind, value, count in found]

    def entries(
        self,
        *,
        ids: Sequence[str] | None = None,
        kind: TagKind | None = None,
        value: str | None = None,
    ) -> Iterator[Tag]:
        """The entries of some items, of a kind, with a value, or all; by item, kind and value."""
        if kind is not None:
            _check_kind(kind)
        parts: list[list[str]] | list[None] = [None]
        if ids is not None:
            names = sorted(check_ids(ids))
            starts = range(0, len(names), _PARAMETERS)
            parts = [names[i : i + _PARAMETERS] for i in starts]
        for part in parts:
            where, given = "removed IS NULL", []
            for column, wanted in (("kind", kind), ("value", value)):
                if wanted is not None:
                    where += f" AND {column} = ?"
                    given.append(wanted)
            if part is not None:
                where += f" AND item IN ({', '.join('?' * len(part))})"
                given += part
            query = f"SELECT {_FIELDS} FROM entries WHERE {where} ORDER BY item, kind, value"  # noqa: S608
            for row in self._read(query, given):
                yield self._entry(row)

    def ids(self, kind: TagKind, value: str | None = None) -> list[str]:
        """The ids of the items that have an entry of this kind, and of this value, sorted."""
        _check_kind(kind)
        found = self._read(
            "SELECT DISTINCT item FROM entries WHERE kind = ? AND removed IS NULL AND (? IS NULL OR value = ?) "
            "ORDER BY item",
            (kind, value, value),
        )
        return [str(name) for (name,) in found]

    def last_change(self) -> int:
        """The number of the last change, by any process; 0 if nothing was ever changed."""
        ((number,),) = self._read("SELECT COALESCE(MAX(number), 0) FROM changes") or [(0,)]
        return int(number)

    def _entry(self, row: Sequence[Any]) -> Tag:
        if not all(isinstance(value, str) for value in row) or row[1] not in KINDS:
            raise self._damaged("an entry that is not text")
        return Tag(*row)

    def _insert(
        self, change: "_Change", rows: Sequence[Sequence[Any]], *, replace: bool = True
    ) -> int:
        """Add entries, and return how many are new; entries without a time have that of the change.

        A kind of which an item has one entry replaces it, or with ``replace=False`` leaves it as it is.
        """
        # of a kind that an item has once, the last entry
        last = {(row[0], row[1], "" if row[1] in _SINGLE else row[2]): row for row in rows}
        change.stage(last.values())
        others = (
            "FROM staged s CROSS JOIN entries e INDEXED BY live "
            f"ON e.item = s.item AND e.kind = s.kind AND e.removed IS NULL WHERE e.kind IN {_SINGLE!r}"
        )
        if replace:
            change.run(
                f"UPDATE entries SET removed = ? WHERE rowid IN (SELECT e.rowid {others} AND e.value <> s.value)",  # noqa: S608
                (change.number,),
            )
        else:
            change.run(f"DELETE FROM staged WHERE rowid IN (SELECT s.rowid {others})")  # noqa: S608
        added = change.run(
            "INSERT INTO entries SELECT item, kind, value, author, COALESCE(NULLIF(time, ''), ?), "
            "COALESCE(added, ?), NULL, restored FROM staged WHERE TRUE ON CONFLICT DO NOTHING",
            (change.time, change.number),
        ).rowcount
        if added:
            change.check_limits()
        return added

    @contextmanager
    def _change(self, action: str, author: str) -> "Iterator[_Change]":
        """A transaction with a new number; it is rolled back if the block fails."""
        if self.read_only:
            raise WriteError(f"the tags in {self.file} are opened for reading only.")
        with self._lock, self._reporting(), reporting_writes(self.file):
            connection = self._open(create=True)
            assert connection is not None
            connection.execute("BEGIN IMMEDIATE")
            try:
                time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                made = connection.execute(
                    "INSERT INTO changes (action, author, time) VALUES (?, ?, ?)",
                    (action, author, time),
                )
                yield _Change(connection, int(made.lastrowid or 0), time)
                connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise

    def _read(self, query: str, given: Sequence[Any] = ()) -> list[Any]:
        with self._lock, self._reporting():
            connection = self._open(create=False)
            return [] if connection is None else connection.execute(query, given).fetchall()

    def _open(self, *, create: bool) -> sqlite3.Connection | None:
        """The connection, which is opened when it is first needed; None if nothing was ever stored."""
        if self._connection is not None:
            return self._connection
        exists = self.file.exists()
        if not exists and not create:
            return None
        if not exists and not self.file.parent.is_dir():
            raise InvalidInputError(f"{self.file.parent} is not a folder, so it cannot hold tags.")
        path = self.file.absolute().as_uri()
        writable = os.access(self.file if exists else self.file.parent, os.W_OK)
        if create and not writable:
            raise WriteError(f"{self.file} is read-only. Name another file for the tags (--tags).")
        mode = "rwc" if create else "rw" if writable and not self.read_only else "ro"
        connection = sqlite3.connect(
            f"{path}?mode={mode}",
            uri=True,
            timeout=_WAIT,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            if not self._prepare(connection, create=create):
                connection.close()  # another process is creating the file
                return None
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection, *, create: bool) -> bool:
        """Create the tables, or check that the file has exactly these, and no triggers or views; whether it has any."""
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        made = self._schema_of(connection)
        if not made and create:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("BEGIN IMMEDIATE")  # another process may be doing the same
            if not self._schema_of(connection):
                for statement in _SCHEMA:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.execute("COMMIT")
            made = self._schema_of(connection)
        ((version,),) = connection.execute("PRAGMA user_version").fetchall()
        if made and version > _VERSION and made != set(_SCHEMA):
            raise InvalidInputError(
                f"{self.file} was written by a newer version of aureole. Update aureole."
            )
        if made and made != set(_SCHEMA):
            raise self._damaged("other tables than a file of tags")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA temp_store = MEMORY")
        return bool(made)

    def _schema_of(self, connection: sqlite3.Connection) -> set[str]:
        found = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
        return {str(statement) for (statement,) in found}

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Raise errors of SQLite as errors of aureole."""
        try:
            yield
        except AureoleError:
            raise
        except (sqlite3.Error, UnicodeDecodeError) as error:
            name = getattr(error, "sqlite_errorname", "")
            self.close()
            if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
                raise WriteError(
                    f"another process has been writing {self.file} for {_WAIT:g} seconds. Try again."
                ) from error
            if name.startswith("SQLITE_FULL"):
                raise WriteError(
                    f"disk full while writing {self.file}. Free some space."
                ) from error
            if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_IOERR")):
                raise WriteError(
                    f"{self.file} cannot be opened or written ({error}). Check its folder, or name another file "
                    "for the tags (--tags)."
                ) from error
            raise self._damaged(str(error)) from error

    def _damaged(self, problem: str) -> DamagedGalleryError:
        return DamagedGalleryError(
            f"{self.file} is damaged or not a file of tags ({problem}). Move it away, and import an export."
        )


@dataclass(frozen=True)
class _Change:
    """A change in progress: a transaction, its number and its time."""

    connection: sqlite3.Connection
    number: int
    time: str

    def run(self, statement: str, given: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Execute a statement."""
        return self.connection.execute(statement, given)

    def stage(self, rows: Iterable[Sequence[Any]]) -> None:
        """Put entries, each with the changes that added and restored it, into the temporary table ``staged``."""
        self.run(f"CREATE TEMP TABLE IF NOT EXISTS staged ({_FIELDS}, added, restored)")
        self.run("DELETE FROM staged")
        self.connection.executemany("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def find_undoable(self, number: int | None) -> int:
        """The number of the change to revert; raise if it does not exist or has been undone."""
        if number is None:
            found = self.run(
                "SELECT number FROM changes WHERE undone IS NULL AND action <> 'undo' AND number < ? "
                "ORDER BY number DESC LIMIT 1",
                (self.number,),
            ).fetchone()
            if found is None:
                raise InvalidInputError("there is no change of the tags to undo.")
            return int(found[0])
        found = self.run(
            "SELECT undone FROM changes WHERE number = ? AND number < ?", (number, self.number)
        ).fetchone()
        if found is None:
            raise InvalidInputError(f"the tags have no change {number}.")
        if found[0] is not None:
            raise InvalidInputError(f"change {number} of the tags has been undone already.")
        return number

    def check_limits(self) -> None:
        """Raise if an item has too many entries, or the file too many tags or entries."""
        crowded = self.run(
            "SELECT item FROM entries WHERE removed IS NULL AND item IN (SELECT item FROM staged) "
            "GROUP BY item HAVING COUNT(*) > ? LIMIT 1",
            (PER_ITEM,),
        ).fetchone()
        if crowded is not None:
            raise InvalidInputError(
                f"item {crowded[0][:60]!r} would have more than {PER_ITEM} tags and notes. Remove some."
            )
        (rows,) = self.run("SELECT COALESCE(MAX(rowid), 0) FROM entries").fetchone()
        if rows > MOST_ENTRIES:
            raise InvalidInputError(
                f"the file of tags would have more than {MOST_ENTRIES:,} entries. Export it and start a new one."
            )
        for kind in ("tag", "relabel"):
            (names,) = self.run(
                "SELECT COUNT(DISTINCT value) FROM entries WHERE kind = ? AND removed IS NULL",
                (kind,),
            ).fetchone()
            if names > MOST_TAGS:
                what = "tags" if kind == "tag" else "suggested labels"
                raise InvalidInputError(f"there would be more than {MOST_TAGS:,} distinct {what}.")


def check_value(kind: str, value: str) -> str:
    """The value of an entry as it is stored: in Unicode's composed form, without surrounding spaces.

    Examples
    --------
    >>> check_value("tag", "  two   words ")
    'two words'
    >>> check_value("tag", "")
    Traceback (most recent call last):
    aureole.errors.InvalidInputError: a tag must not be empty.
    """
    _check_kind(kind)
    if kind == "duplicate":
        (name,) = check_ids([value])
        if not name:
            raise InvalidInputError("the id of the other item must not be empty.")
        return name
    names = {"tag": "a tag", "note": "a note", "relabel": "a label"}
    text = _checked(value, kind, names[kind])
    if not text and kind != "relabel":
        raise InvalidInputError(f"{names[kind]} must not be empty.")
    if kind == "tag" and text.startswith(":"):
        raise InvalidInputError("a tag must not start with a colon.")
    return text


def describe(entry: Mapping[str, Any] | Tag) -> str:
    """An entry in a few words.

    Examples
    --------
    >>> describe(Tag("ant", "relabel", "bee")), describe(Tag("ant", "tag", "blurred"))
    ("needs relabelling: 'bee'", "tag 'blurred'")
    """
    values = vars(entry) if isinstance(entry, Tag) else entry
    return _named(values["kind"], values["value"])


def _named(kind: str, value: str) -> str:
    words = {
        "relabel": "needs relabelling",
        "duplicate": "duplicate of",
        "note": "note",
        "tag": "tag",
    }
    if kind == "note" or not value:
        return words[kind]
    return f"{words[kind]}{':' if kind == 'relabel' else ''} {value!r}"


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise InvalidInputError(
            f"kind must be one of {', '.join(KINDS)}, but is {str(kind)[:40]!r}."
        )


def _checked(value: str, field: str, name: str) -> str:
    """A text in composed form, of printable characters and at most so long; notes may have several lines."""
    if not isinstance(value, str):
        raise InvalidInputError(f"{name} must be text, but is {type(value).__name__}.")
    if len(value) > 4 * LONGEST[field]:
        text = value
    elif field == "note":
        lines = unicodedata.normalize("NFC", value).replace("\t", " ").splitlines()
        text = "\n".join(" ".join(line.split()) for line in lines).strip("\n")
    else:
        text = " ".join(unicodedata.normalize("NFC", value).split())
    if len(text) > LONGEST[field]:
        raise InvalidInputError(
            f"{name} has {len(text):,} characters, but the limit is {LONGEST[field]:,}."
        )
    for char in text:
        if not (char.isprintable() or char in _JOINERS or (char == "\n" and field == "note")):
            raise InvalidInputError(f"{name} contains the control character U+{ord(char):04X}.")
    return text
