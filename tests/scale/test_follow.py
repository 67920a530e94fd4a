"""``follow``: a table that keeps up with a folder, a table file and a table of PostgreSQL."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from aureole.data import write_columns
from aureole.errors import AureoleError, InvalidInputError, MissingInputError
from aureole.retrieval import CredibleIndex
from aureole.scale import FollowOptions, ModelSpec, SourceSpec, embed, follow
from aureole.training import FrozenHead
from tests.made_pictures import make_pictures
from tests.cli.conftest import run
from tests.retrieval.conftest import server  # noqa: F401
from tests.scale.conftest import assert_same, by_id

pytest.importorskip("lance")


@contextlib.contextmanager
def following(source, model, out, **options):
    """(A function that waits for the next round, all rounds) of ``follow`` in a thread."""
    stop, rounds, seen = threading.Event(), [], [0]
    failures = []

    def work():
        try:
            settings = FollowOptions(0.05, **options)
            follow(source, model, str(out), options=settings, stop=stop, observer=rounds.append)
        except BaseException as error:
            failures.append(error)

    def after(change=lambda: None, seconds=30):
        change()
        patience = time.monotonic() + seconds
        while len(rounds) == seen[0]:
            assert not failures, failures
            assert time.monotonic() < patience
            time.sleep(0.01)
        seen[0] += 1
        return rounds[seen[0] - 1]

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield after, rounds
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
    assert not failures, failures


def add(picture, to):
    """Copy a picture as a program would that writes atomically."""
    part = to.with_name(f".{to.name}")
    shutil.copy(picture, part)
    os.utime(part)
    part.rename(to)


@pytest.fixture
def folder(tmp_path):
    """(A folder of 12 pictures, their paths)."""
    make_pictures(tmp_path / "p", 24)
    for path in (tmp_path / "p").rglob("*.jp*g"):
        path.unlink()
    return tmp_path / "p", sorted((tmp_path / "p").rglob("*.png"))


def test_new_and_changed_pictures_are_embedded(folder, encoder, tmp_path):
    source, files = folder
    held = [files[i].rename(tmp_path / f"{i}.png") for i in (0, 1, 2)]
    out = tmp_path / "t.lance"
    with following(str(source), encoder, out) as (after, rounds):
        first = after()
        assert (first.added, first.replaced, first.rows, first.errors) == (9, 0, 9, 0)
        index = CredibleIndex.open(out)
        new = after(lambda: add(held[0], source / "new.png"))
        assert (new.added, new.replaced, new.rows) == (1, 0, 10)
        assert index.count() == 10  # an index that is open sees it at once
        before = float(index.fetch(["new.png"])[0].kappa)
        changed = after(lambda: add(held[1], source / "new.png"))
        assert (changed.added, changed.replaced, changed.rows) == (0, 1, 10)
        assert float(index.fetch(["new.png"])[0].kappa) != before
        broken = after(lambda: (source / "bad.png").write_bytes(b"no picture"))
        assert (broken.added, broken.errors) == (0, 1)
        assert broken.reason.startswith("bad.png: ")
        os.utime(files[5])  # another time, the same picture
        files[6].unlink()  # its row stays
        time.sleep(0.3)
        assert not any(each.added or each.replaced for each in rounds[3:])
    shutil.copy(held[2], source / "later.png")
    with following(str(source), encoder, out) as (after, _):
        assert (lambda r: (r.added, r.replaced))(after()) == (1, 0)
    (source / "bad.png").unlink()
    add(held[2], files[6])
    follow(str(source), encoder, str(out), stop=_set())  # it was stopped before it began
    assert embed(source, encoder, out).new_rows == 0  # either resumes the other
    shutil.rmtree(tmp_path / "again.lance", ignore_errors=True)
    embed(source, encoder, tmp_path / "again.lance")
    wanted, found = by_id(tmp_path / "again.lance"), by_id(out)
    kept = files[6].relative_to(source).as_posix()
    wanted.pop(kept)
    found.pop(kept)
    assert_same(found, wanted)


def _set():
    stop = threading.Event()
    stop.set()
    return stop


def table(path, rows):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(50, 8)).astype(np.float32)
    names = [name for name, _ in rows]
    return write_columns(
        path,
        {
            "v": np.stack([vectors[seed] for _, seed in rows]),
            "id": np.array(names, dtype=object),
        },
    )


def test_rows_of_a_table_are_compared(head, tmp_path):
    path, out = tmp_path / "v.parquet", tmp_path / "t.lance"
    table(path, [(f"row {i}", i) for i in range(20)])
    spec = SourceSpec(str(path), id_column="id")
    with following(spec, ModelSpec(None, head), out) as (after, _):
        assert after().added == 20
        # one row is new, one has changed, and one is gone
        rows = [(f"row {i}", i) for i in range(1, 20)] + [("row 20", 20)]
        rows[4] = ("row 5", 40)
        found = after(lambda: table(path, rows))
        assert (found.added, found.replaced, found.rows) == (1, 1, 21)
        found = after(lambda: path.write_bytes(b"half a file"))
        assert found.reason is not None
        assert (found.added, found.errors) == (0, 0)
        found = after(lambda: table(path, [("row 30", 30)]))
        assert (found.added, found.rows) == (1, 22)


def test_what_cannot_be_followed_is_refused(folder, encoder, head, tmp_path):
    out = str(tmp_path / "t.lance")
    path = table(tmp_path / "v.parquet", [("a", 0)])
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "a.tar").write_bytes(b"")
    cases = [
        (SourceSpec(str(path)), {}, "--id-column"),
        (SourceSpec(str(tmp_path / "s"), "image"), {}, "cannot be followed"),
        (SourceSpec(str(folder[0])), {"updated": "x"}, "--updated-column"),
        (SourceSpec(str(tmp_path / "none")), {}, "does not exist"),
        (SourceSpec("postgresql://me@127.0.0.1:1/db"), {}, "name the table"),
        (SourceSpec("postgresql://me@127.0.0.1:1/db#t"), {}, "--id-column"),
    ]
    for spec, options, text in cases:
        with pytest.raises(InvalidInputError, match=text):
            follow(spec, head, out, options=FollowOptions(**options))
    with pytest.raises(InvalidInputError, match="every"):
        FollowOptions(0.0)
    spec = SourceSpec("postgresql://me:secret@127.0.0.1:1/db#t", column="v", id_column="id")
    with pytest.raises(AureoleError, match="no connection") as caught:
        follow(spec, head, out)
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "t.lance").exists()
    done = run("embed", "postgresql://me@127.0.0.1:1/db#t", "--head", head, "--out", out)
    assert done.exit_code == 2


NAMES = {"table": 'shop"; --', "id": "the id", "input": 'v"ec', "time": "updated at"}


@pytest.fixture
def database(server):  # noqa: F811
    """(Address of an empty table with awkward names, a function that runs statements on it)."""
    psycopg = pytest.importorskip("psycopg")
    uri = server.get_uri()
    connection = psycopg.connect(uri, autocommit=True)
    names = {name: psycopg.sql.Identifier(text) for name, text in NAMES.items()}

    def execute(text, *values, on=connection):
        return on.execute(psycopg.sql.SQL(text).format(**names), values)

    execute("DROP TABLE IF EXISTS {table}")
    execute(
        "CREATE TABLE {table} ({id} text PRIMARY KEY, {input} double precision[], "
        "{time} timestamptz NOT NULL DEFAULT now())"
    )
    yield f"{uri}#{NAMES['table'].replace(' ', '%20')}", execute, lambda: psycopg.connect(uri)
    connection.close()


def vector(seed):
    return np.random.default_rng(seed).normal(size=8).tolist()


INSERT = "INSERT INTO {table} ({id}, {input}) VALUES (%s, %s)"
UPDATE = "UPDATE {table} SET {input} = %s, {time} = now() WHERE {id} = %s"


def test_rows_of_postgresql_are_followed(database, head, tmp_path):
    address, execute, connect = database
    out = tmp_path / "t.lance"
    for i in range(30):
        execute(INSERT, f"row {i}", vector(i))
    spec = SourceSpec(address, "vector", NAMES["input"], NAMES["id"])
    model = ModelSpec(None, head)
    with following(spec, model, out, updated=NAMES["time"]) as (after, _):
        assert (lambda r: (r.added, r.rows))(after()) == (30, 30)
        late = connect()  # begins before, and commits after others
        execute(INSERT, "late", vector(50), on=late)
        found = after(lambda: execute(INSERT, "row 30", vector(30)))
        assert (found.added, found.rows) == (1, 31)
        found = after(late.commit)
        assert (found.added, found.rows) == (1, 32)
        late.close()
        found = after(lambda: execute(UPDATE, vector(60), "row 3"))
        assert (found.added, found.replaced) == (0, 1)
        execute("DELETE FROM {table} WHERE {id} = %s", "row 4")  # its row stays
        execute("UPDATE {table} SET {time} = now() WHERE {id} = %s", "row 5")  # the same vector
        found = after(lambda: execute(INSERT, "none", None))
        assert (found.added, found.errors, found.rows) == (0, 1, 32)
    with following(spec, model, out, updated=NAMES["time"]) as (after, _):
        assert (lambda r: (r.added, r.replaced, r.rows))(after()) == (0, 0, 32)
    with CredibleIndex.open(out) as index:
        own, _ = index.fetch(["row 3"])
        wanted = FrozenHead.load(head).predict(np.array([vector(60)], np.float32))
        np.testing.assert_allclose(own.mu, wanted.mu, atol=1e-5)
        assert index.check() == []


def test_a_table_of_postgresql_is_checked(database, head, tmp_path):
    address, execute, _ = database
    model, out = ModelSpec(None, head), str(tmp_path / "t.lance")
    execute(INSERT, "a", vector(0))
    spec = SourceSpec(address, "vector", NAMES["input"], NAMES["id"])
    with pytest.raises(InvalidInputError, match="--updated-column"):  # ids do not grow
        follow(spec, model, out)
    with pytest.raises(MissingInputError, match="no column 'when'"):
        follow(spec, model, out, options=FollowOptions(updated="when"))
    missing = SourceSpec(address.partition("#")[0] + "#nothing", "vector", "v", "id")
    with pytest.raises(MissingInputError, match="does not exist"):
        follow(missing, model, out)
    assert not (tmp_path / "t.lance").exists()


@pytest.mark.long
def test_the_command_is_killed_resumes_and_ends_cleanly(folder, encoder, tmp_path):
    source, files = folder
    held = [files[i].rename(tmp_path / f"{i}.png") for i in (0, 1)]
    command = [sys.executable, "-m", "aureole", "embed", str(source), "--encoder", str(encoder)]
    command += ["--out", str(tmp_path / "t.lance"), "--follow", "--every", "0.1", "--json"]

    def start():
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    with start() as process:
        assert json.loads(process.stdout.readline())["new_rows"] == 10  # of embed
        assert json.loads(process.stdout.readline())["added"] == 0  # the first look
        add(held[0], source / "a.png")
        assert json.loads(process.stdout.readline())["added"] == 1
        process.kill()
    add(held[1], source / "a.png")
    add(held[1], source / "b.png")
    with start() as process:
        assert json.loads(process.stdout.readline())["new_rows"] == 1
        first = json.loads(process.stdout.readline())
        assert (first["added"], first["replaced"], first["rows"]) == (0, 1, 12)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
    left = {path.name for path in tmp_path.iterdir()}
    assert not any("embed.lock" in name or name.endswith(".part") for name in left)
