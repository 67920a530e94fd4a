"""Tags: what is added, removed and undone, by one user and by several, also by processes that are killed."""

import csv
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch

from aureole.distributions import VonMisesFisher
from aureole.errors import AureoleError, DamagedGalleryError, InvalidInputError, WriteError
from aureole.retrieval import (
    CredibleIndex,
    Origin,
    Tag,
    Tags,
    read_tag_table,
    relabel_queue,
    tag_table,
    write_tag_table,
)

FORMULAS = [
    '=HYPERLINK("http://evil.example","x")',
    "+1",
    "-1+2",
    "@SUM(A1)",
    "\uff1d1",
    "'=1",
    "'a",
]


@pytest.fixture
def tags(tmp_path):
    with Tags(tmp_path / "gallery.lance.tags.sqlite") as opened:
        yield opened


def pairs(tags, **chosen):
    return {(entry.id, entry.kind, entry.value) for entry in tags.entries(**chosen)}


def test_nothing_is_written_before_the_first_change(tags):
    assert (tags.counts(), list(tags.entries()), tags.last_change()) == ([], [], 0)
    assert not tags.file.exists()
    tags.add(["a"], "tag", "x")
    assert tags.file.exists()


def test_every_sequence_of_changes_leaves_what_a_set_would(tags):
    """The oracle: a Python set, and a copy of it before each change for undo."""
    rng = random.Random(0)
    ids, values = list("abcdef"), ["x", "y", "z"]
    state, before, after = set(), {}, {}
    undone = set()
    for _ in range(120):
        action = rng.choice(["add", "add", "remove", "single", "undo"])
        some = rng.sample(ids, rng.randint(1, 4))
        value = rng.choice(values)
        old = set(state)
        if action == "add":
            change = tags.add(some, "tag", value)
            state |= {(i, "tag", value) for i in some}
        elif action == "single":
            change = tags.add(some, "relabel", value)
            state = {e for e in state if e[1] != "relabel" or e[0] not in some}
            state |= {(i, "relabel", value) for i in some}
        elif action == "remove":
            wanted = rng.choice([value, None])
            change = tags.remove(some, "tag", wanted)
            gone = {e for e in state if e[0] in some and e[1] == "tag" and wanted in (None, e[2])}
            state -= gone
            assert change.changed == len(gone)
        else:  # of the last change only, so that the oracle is the state before it
            last = tags.last_change()
            if not last or last in undone:
                continue
            change = tags.undo(last)
            undone.add(last)
            state = before[last]
        before[change.number], after[change.number] = old, set(state)
        assert pairs(tags) == state
        found = {(kind, value): n for kind, value, n in tags.counts()}
        for kind, name in found:
            assert found[kind, name] == len({e[0] for e in state if e[1:] == (kind, name)})


def test_undo_leaves_what_others_have_changed_since(tags):
    first = tags.add(["a", "b"], "tag", "x", author="Ann")
    tags.remove(["a"], "tag", "x", author="Bob")
    tags.add(["a"], "tag", "x", author="Bob")
    assert tags.undo(first.number).changed == 1
    assert pairs(tags) == {("a", "tag", "x")}
    (entry,) = tags.entries()
    assert entry.author == "Bob"
    with pytest.raises(InvalidInputError, match="undone already"):
        tags.undo(first.number)
    with pytest.raises(InvalidInputError, match="no change 99"):
        tags.undo(99)


def test_undo_restores_authors_and_can_be_undone(tags):
    tags.add(["a"], "note", "first", author="Ann")
    tags.remove(["a"], "note", author="Bob")
    back = tags.undo()
    (entry,) = tags.entries()
    assert (entry.author, entry.value) == ("Ann", "first")
    tags.undo(back.number)
    assert pairs(tags) == set()


def test_undo_also_removes_what_was_removed_and_restored_since(tags):
    first = tags.add(["a", "b"], "tag", "x")
    removal = tags.remove(["a"], "tag", "x")
    back = tags.undo(removal.number)
    assert tags.undo(back.number).changed == 1
    assert pairs(tags) == {("b", "tag", "x")}
    tags.undo(tags.last_change())
    assert tags.undo(first.number).changed == 2
    assert pairs(tags) == set()


def test_a_new_label_replaces_the_old_one_and_returns_by_undo(tags):
    tags.add(["a"], "relabel")
    change = tags.add(["a"], "relabel", "dog")
    assert pairs(tags) == {("a", "relabel", "dog")}
    tags.undo(change.number)
    assert pairs(tags) == {("a", "relabel", "")}


@pytest.mark.parametrize(
    ("kind", "value", "match"),
    [
        ("tag", "", "must not be empty"),
        ("tag", "   ", "must not be empty"),
        ("tag", "x" * 65, "65 characters"),
        ("tag", "a\x00b", "U\\+0000"),
        ("tag", "a\u202eb", "U\\+202E"),
        ("tag", "a\x1b[31m", "U\\+001B"),
        ("tag", "\ud800", "U\\+D800"),
        ("tag", ":relabel", "colon"),
        ("note", "", "must not be empty"),
        ("note", "x" * 4001, "4,001 characters"),
        ("relabel", "x" * 257, "257 characters"),
        ("duplicate", "", "must not be empty"),
        ("duplicate", "a", "itself"),
        ("duplicate", "x" * 1025, "1025 characters"),
    ],
)
def test_what_is_refused_stores_nothing(tags, kind, value, match):
    with pytest.raises(InvalidInputError, match=match):
        tags.add(["a", "b"], kind, value)
    assert list(tags.entries()) == []


def test_values_are_normalised(tags):
    tags.add(["a"], "tag", " cafe\u0301  noir ")
    tags.add(["a"], "note", "one\ttwo\r\nthree\u00a0four")
    assert pairs(tags) == {("a", "tag", "caf\u00e9 noir"), ("a", "note", "one two\nthree four")}


def test_limits_hold_for_all_or_none(tags, monkeypatch):
    monkeypatch.setattr("aureole.retrieval._tags.PER_ITEM", 3)
    for value in "xyz":
        tags.add(["a"], "tag", value)
    with pytest.raises(InvalidInputError, match="more than 3"):
        tags.add(["b", "a"], "tag", "w")
    assert pairs(tags, ids=["b"]) == set()
    monkeypatch.setattr("aureole.retrieval._tags.MOST_TAGS", 3)
    with pytest.raises(InvalidInputError, match="distinct tags"):
        tags.add(["b"], "tag", "w")
    monkeypatch.setattr("aureole.retrieval._tags.MOST_ENTRIES", 3)
    with pytest.raises(InvalidInputError, match="more than 3 entries"):
        tags.add(["b"], "tag", "x")
    assert len(list(tags.entries())) == 3


def test_a_read_only_handle_and_a_missing_folder(tags, tmp_path):
    tags.add(["a"], "tag", "x")
    with Tags(tags.file, read_only=True) as reader:
        assert reader.counts() == [("tag", "x", 1)]
        with pytest.raises(WriteError, match="reading only"):
            reader.add(["a"], "tag", "y")
    with pytest.raises(InvalidInputError, match="not a folder"):
        Tags(tmp_path / "none" / "x.sqlite").add(["a"], "tag", "x")
    with pytest.raises(InvalidInputError, match="--tags"):
        Tags.of_gallery("postgresql://ann:secret@host/db#t")


def hostile_files(folder):
    """(Name, path) of files that are not of ours."""
    text = folder / "text.sqlite"
    text.write_bytes(b"not a database" * 1000)
    yield "text", text
    other = folder / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE entries (item TEXT)")
    yield "other tables", other
    trigger = folder / "trigger.sqlite"
    Tags(trigger).add(["a"], "tag", "x")
    with sqlite3.connect(trigger) as connection:
        connection.execute(
            "CREATE TRIGGER t AFTER INSERT ON entries BEGIN DELETE FROM entries; END"
        )
    yield "a trigger", trigger
    cut = folder / "cut.sqlite"
    with Tags(cut) as tags:
        tags.add([str(i) for i in range(2000)], "tag", "x")
    cut.write_bytes(cut.read_bytes()[:20_000])
    yield "cut", cut
    blob = folder / "blob.sqlite"
    with Tags(blob) as tags:
        tags.add(["a"], "tag", "x")
    with sqlite3.connect(blob) as connection:
        connection.execute("UPDATE entries SET value = X'00FF'")
    yield "a blob", blob


def all_of(path):
    with Tags(path) as tags:
        return list(tags.entries())


def test_files_of_others_are_refused(tmp_path):
    for _, path in hostile_files(tmp_path):
        with pytest.raises(DamagedGalleryError, match="damaged or not a file of tags"):
            all_of(path)


def test_damaged_bytes_are_a_typed_error_or_nothing(tmp_path):
    whole = tmp_path / "whole.sqlite"
    with Tags(whole) as tags:
        tags.add([f"item {i}" for i in range(500)], "tag", "x")
    content = whole.read_bytes()
    rng = random.Random(1)
    for trial in range(60):
        damaged = bytearray(content)
        for _ in range(20):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path = tmp_path / f"{trial}.sqlite"
        path.write_bytes(damaged)
        try:
            with Tags(path) as tags:
                list(tags.entries())
                tags.add(["new"], "tag", "y")
        except AureoleError:
            pass


@pytest.fixture(scope="module")
def writers():
    """A function that starts a process that tags items, and returns its id."""
    command = [sys.executable, "-m", "tests.retrieval.tagging_writer"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def start(file, name, count, size=3):
        process.stdin.write(f"{file} {name} {count} {size}\n")
        process.stdin.flush()
        return int(process.stdout.readline())

    yield start
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


def acknowledged(file, name):
    log = file.with_name(f"{file.name}.{name}")
    return len(log.read_text().splitlines()) if log.exists() else 0


def wait_until(done):
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.01)


def is_gone(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_threads_and_processes_lose_nothing(tmp_path, writers):
    """Two processes and four threads of one handle write at once."""
    file = tmp_path / "g.tags.sqlite"
    processes = [writers(file, name, 40) for name in ("ann", "bob")]
    with Tags(file) as tags:

        def work(name):
            for i in range(20):
                tags.add([f"{name}-{i}"], "tag", name)

        threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until(lambda: all(map(is_gone, processes)))
        assert [acknowledged(file, name) for name in ("ann", "bob")] == [40, 40]
        found = {value: n for _, value, n in tags.counts()}
        assert found == {"ann": 120, "bob": 120, "t0": 20, "t1": 20, "t2": 20, "t3": 20}
        assert tags.last_change() == 160


def test_a_killed_writer_loses_nothing_that_it_has_acknowledged(tmp_path, writers):
    rng = random.Random(2)
    file = tmp_path / "g.tags.sqlite"
    total, size = 0, 50
    for trial in range(8):
        name = f"w{trial}"
        pid = writers(file, name, 100_000, size)
        wait_until(lambda name=name: acknowledged(file, name))
        time.sleep(rng.uniform(0.0, 0.3))
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda pid=pid: is_gone(pid))
        told = acknowledged(file, name)
        with Tags(file) as tags:
            ids = set(tags.ids("tag", name))
            changes = {each.rsplit("-", 1)[0] for each in ids}
            assert len(ids) == size * len(changes)  # no change in part
            assert {f"{name}-{i}" for i in range(told)} <= changes
            assert len(changes) <= told + 1
            assert tags.add(["after"], "tag", f"t{trial}").changed == 1
        total += told
        with sqlite3.connect(file) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    print(f"\n{total} changes acknowledged before SIGKILL")


ENTRIES = [
    Tag("a", "tag", "blurred", "Ann", "2026-01-31T12:00:00Z"),
    Tag("=1+1", "note", 'two\nlines, "quoted"; =cmd', "-Bob", "2026-01-31T12:00:01Z"),
    *(Tag(f"f{i}", "tag", value, "", "2026-01-31T12:00:02Z") for i, value in enumerate(FORMULAS)),
    Tag("b", "relabel", "", "", "2026-01-31T12:00:03Z"),
    Tag("c", "duplicate", "-b", "", "2026-01-31T12:00:03Z"),
]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_exports_come_back(tags, tmp_path, suffix):
    pytest.importorskip("pyarrow")
    tags.load(ENTRIES)
    path = write_tag_table(tmp_path / f"tags.{suffix}", tag_table(tags.entries()))
    found = read_tag_table(path)
    assert set(found) == set(ENTRIES)
    with Tags(tmp_path / "copy.sqlite") as copy:
        assert copy.load(found).changed == len(ENTRIES)
        assert set(copy.entries()) == set(ENTRIES)
        assert copy.load(found).changed == 0


def test_no_cell_of_a_csv_is_a_formula(tags, tmp_path):
    pytest.importorskip("pyarrow")
    tags.load(ENTRIES)
    path = write_tag_table(tmp_path / "tags.csv", tag_table(tags.entries()))
    with path.open(newline="") as file:
        cells = [cell for row in csv.reader(file) for cell in row]
    assert len(cells) == 5 * (1 + len(ENTRIES))
    assert not [
        cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r", "\uff1d"))
    ]


def test_imports_are_checked(tags, tmp_path):
    for wrong in (
        {"kind": "colour"}, {"value": ""}, {"id": "x" * 2000}, {"time": "yesterday"}, {"author": "a\x07"},
    ):  # fmt: skip
        with pytest.raises(InvalidInputError):
            tags.load(
                [Tag("a", "tag", "ok"), Tag(**{"id": "b", "kind": "tag", "value": "x"} | wrong)]
            )
    assert list(tags.entries()) == []
    pytest.importorskip("pyarrow")
    path = tmp_path / "other.csv"
    path.write_text("name,colour\na,red\n")
    with pytest.raises(InvalidInputError, match="id"):
        read_tag_table(path)
    least = tmp_path / "least.jsonl"
    least.write_text(json.dumps({"id": "7", "kind": "tag", "value": "x"}) + "\n")
    assert read_tag_table(least) == [Tag("7", "tag", "x")]


def test_the_queue_is_ordered_by_how_many_neighbours_disagree(tags):
    """Three tight groups; labels of some items are wrong, and the oracle counts labels in the caps."""
    pytest.importorskip("faiss")
    rng = torch.Generator().manual_seed(0)
    centres = torch.eye(3).repeat_interleave(20, 0)
    mu = torch.nn.functional.normalize(centres + 0.05 * torch.randn(60, 3, generator=rng), dim=-1)
    labels = [("ant", "bee", "cat")[i // 20] for i in range(60)]
    labels[0], labels[20], labels[21] = "cat", "=ant", "=ant"
    kappa = torch.full((60,), 50.0) + torch.arange(60)
    ids = [f"i{i}" for i in range(60)]
    with CredibleIndex.create(
        "faiss://", VonMisesFisher(mu, kappa), ids, {"label": labels}
    ) as index:
        index.origin = Origin(30.0)
        tags.add(["i0", "i5", "i20", "i21"], "relabel", "ant")
        tags.add(["gone"], "relabel")
        tags.add(["i0"], "note", "looks like an ant")
        queue = relabel_queue(index, tags, label_column="label")
        found = {name: column.tolist() for name, column in queue.columns.items()}
        for i, name in enumerate(found["id"]):
            own = index.fetch([name])[0][0]
            hits = index.search(own, 0.95, limit=101, columns=["label"])
            near = [b for a, b in zip(hits.ids, hits.payload["label"], strict=True) if a != name]
            label = labels[ids.index(name)]
            assert found["label"][i] == label
            share = near[:100].count(label) / len(near[:100])
            assert found["priority"][i] == pytest.approx(1 - share, abs=6e-5)
            assert found["suggested"][i] == max(set(near), key=near.count)
    assert found["id"] == ["i0", "i21", "i20", "i5"]
    assert found["suggested"][0] == "ant"
    assert found["notes"][0] == "looks like an ant"
    assert queue.missing == ["gone"]
    assert np.all(np.diff(queue.columns["priority"]) <= 0)
    none = relabel_queue(index, Tags(tags.file.with_name("none.sqlite")), label_column="label")
    assert len(none) == 0
