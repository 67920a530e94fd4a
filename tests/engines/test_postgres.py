"""What a PostgreSQL refuses: told in this library's errors, with no connection left behind."""

import itertools
import threading
import time

import pytest

import aureole as au
from aureole.caps import CredibleIndex
from aureole.engines._postgres import PostgresStore
from aureole.errors import AureoleError, InvalidInputError
from tests.engines.conftest import assert_exact, brute_force, everything, names, posteriors

_numbers = itertools.count()


@pytest.fixture
def admin(server):
    """A connection of the database's owner."""
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def caller(server, admin):
    """(An address without a table, a function that waits until all who called by it have gone)."""
    name = f"caller_{next(_numbers)}"

    def gone():
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        for _ in range(100):
            if admin.execute(query, [name]).fetchone()[0] == 0:
                return True
            time.sleep(0.05)
        return False

    return f"{server.get_uri()}&application_name={name}", gone


def test_who_may_not_create_is_told(caller, admin):
    where, gone = caller
    CredibleIndex.create(f"{where}#of_the_owner", posteriors(3, 3), names(3)).close()
    admin.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    admin.execute("CREATE ROLE visitor LOGIN")
    visit = where.replace("postgresql://postgres", "postgresql://visitor", 1)
    with pytest.raises(AureoleError, match="could not create a gallery: permission denied") as told:
        CredibleIndex.create(f"{visit}#new", posteriors(3, 3), names(3))
    assert gone()
    with pytest.raises(AureoleError, match="could not read: permission denied") as told_too:
        CredibleIndex.open(f"{visit}#of_the_owner")
    assert gone()
    admin.execute("GRANT SELECT ON of_the_owner, of_the_owner_notes TO visitor")
    with CredibleIndex.open(f"{visit}#of_the_owner") as index:
        assert index.count() == 3
        for change in (
            lambda: index.append(posteriors(1, 3), ["new"]),
            lambda: index.delete(["row 1"]),
            lambda: index.build("ivf", lists=1),
        ):
            with pytest.raises(
                AureoleError, match=r"could not .*: (permission denied|must be owner)"
            ):
                change()
        assert index.count() == 3
    assert gone()
    del told, told_too


def test_a_gallery_that_is_refused_leaves_no_connection(caller, admin):
    where, gone = caller
    CredibleIndex.create(f"{where}#there", posteriors(3, 3), names(3)).close()
    admin.execute("CREATE TABLE foreign_notes (x int)")
    admin.execute("CREATE TABLE odd_notes (name text, body text)")
    admin.execute("INSERT INTO odd_notes VALUES ('schema', '{')")
    cases = [
        (lambda: CredibleIndex.create(f"{where}#there", posteriors(3, 3), names(3)), "already"),
        (lambda: CredibleIndex.open(f"{where}#nowhere"), "holds no gallery"),
        (lambda: CredibleIndex.open(f"{where}#foreign"), "could not read: column"),
        (lambda: CredibleIndex.open(f"{where}#odd"), "not JSON"),
    ]
    kept = []
    for case, message in cases:
        with pytest.raises(AureoleError, match=message) as told:
            case()
        kept.append(told)  # and with it all that its frames hold
        assert gone()


def test_a_table_that_was_dropped_is_told(caller, admin):
    where, gone = caller
    gallery = posteriors(3, 3)
    index = CredibleIndex.create(f"{where}#dropped", gallery, names(3))
    admin.execute("DROP TABLE dropped, dropped_notes")
    for use in (
        index.count,
        lambda: list(index.scan()),
        lambda: index.fetch(["row 1"]),
        lambda: index.search(gallery),
        lambda: index.append(posteriors(1, 3), ["new"]),
        lambda: index.conformal,
    ):
        with pytest.raises(AureoleError, match=r"dropped.*does not exist"):
            use()
        assert gone()
    with CredibleIndex.create(f"{where}#dropped", gallery, names(3)):
        assert index.count() == 3  # a new connection finds the new table
        index.close()


def test_a_timeout_is_told_and_not_tried_again(caller):
    where, gone = caller
    index = CredibleIndex.create(f"{where}#slow", posteriors(3, 3), names(3))
    index.close()
    store = PostgresStore.open(f"{where}&options=-c%20statement_timeout%3D200#slow")
    connection, calls = store._connection, []

    def sleep(c):
        calls.append(c)
        return c.execute("SELECT pg_sleep(20)")

    with pytest.raises(AureoleError, match=r"could not read: canceling .* timeout"):
        connection.run(sleep, "read")
    assert len(calls) == 1
    with pytest.raises(AureoleError, match=r"could not append: canceling .* timeout"):
        connection.run(sleep, "append", changes=True)
    assert len(calls) == 2
    assert gone()
    assert store.count() == 3
    store.close()


def test_a_scan_starts_on_a_connection_that_was_lost(caller, admin):
    where, gone = caller
    index = CredibleIndex.create(f"{where}#cut", posteriors(3, 3), names(3))
    name = where.rpartition("=")[2]
    query = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
    admin.execute(query, [name])
    assert gone()
    assert [len(ids) for ids, _, _ in index.scan()] == [3]
    index.close()


def test_two_who_create_at_once_get_one_gallery(caller, admin):
    where, _ = caller
    psycopg = pytest.importorskip("psycopg")
    CredibleIndex.create(f"{where}#other", posteriors(1, 3), names(1)).close()
    with psycopg.connect(where) as first:  # has made the table, and not said so yet
        first.execute("CREATE TABLE twice (x int)")

        told = []

        def second():
            try:
                CredibleIndex.create(f"{where}#twice", posteriors(3, 3), names(3))
            except InvalidInputError as error:
                told.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.5)
        assert thread.is_alive()  # it waits for the first
        first.commit()
        thread.join(timeout=20)
    assert len(told) == 1
    assert "already" in told[0]


def test_what_pgvector_cannot_take_is_refused_before(server):
    where = f"{server.get_uri()}#large_sizes"
    with CredibleIndex.create(where, posteriors(3, 4), names(3)) as index:
        with pytest.raises(AureoleError, match="101 out of bounds"):
            index.build("hnsw", links=101)
        with pytest.raises(AureoleError, match="32769 out of bounds"):
            index.build("ivf", lists=32_769)
        assert index.approximate is None


def test_a_client_outlives_a_restart_of_the_server(server):
    where = f"{server.get_uri()}#restarted"
    gallery, ids = posteriors(100, 6), names(100)
    index = CredibleIndex.create(where, gallery, ids)
    query = au.VonMisesFisher(gallery.mu[3], 9.0)
    expected = brute_force(gallery, ids, query, 0.9)
    assert_exact(index.search(query, 0.9), expected)
    results, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            try:
                results.append(index.search(query, 0.9).ids)
            except AureoleError as error:
                results.append(str(error))

    client = threading.Thread(target=ask)
    client.start()
    time.sleep(0.3)
    before = len(results)
    server.stop()
    server.ensure_postgres_running()
    deadline = time.monotonic() + 30
    while len(results) < before + 50 and time.monotonic() < deadline:
        time.sleep(0.1)
    stop.set()
    client.join(timeout=30)
    assert before > 0
    assert len(results) >= before + 50
    right = [name for name, _ in expected]
    assert all(found == right or "connection" in found for found in results)
    assert results[-1] == right
    index.append(posteriors(2, 6, seed=4), ["new 1", "new 2"])
    assert index.count() == 102
    index.close()


def test_a_lost_connection_is_made_again_and_a_lost_server_is_named(server, monkeypatch):
    psycopg = pytest.importorskip("psycopg")
    where = f"{server.get_uri()}#lost"
    index = CredibleIndex.create(where, posteriors(20, 4), names(20))
    kill = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    with psycopg.connect(server.get_uri(), autocommit=True) as other:
        other.execute(kill)
        assert len(everything(index)) == 20
        other.execute(kill)
        index.append(posteriors(1, 4), ["new"])
        other.execute(kill)
        assert index.delete(["new"]) == 1
    monkeypatch.setattr("aureole.engines._postgres._WAITS", (0.0, 0.05))
    server.stop()
    try:
        with pytest.raises(AureoleError, match="no connection"):
            index.count()
    finally:
        server.ensure_postgres_running()
    assert index.count() == 20
    index.close()


def test_secrets_stay_out_of_messages():
    pytest.importorskip("psycopg")
    with pytest.raises(AureoleError, match="no connection") as caught:
        CredibleIndex.open("postgresql://me:hunter2@127.0.0.1:1/none?connect_timeout=2")
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidInputError, match="cannot name a table"):
        CredibleIndex.open("postgresql://127.0.0.1:1/none#x; DROP TABLE y")


@pytest.mark.parametrize("where", ["postgresql:///?service=shop", "postgresql://?service=shop"])
def test_a_service_file_names_host_and_database(server, admin, tmp_path, monkeypatch, where):
    """Without a host the address has three slashes in a row; libpq rejects it with fewer."""
    info = admin.info
    file = tmp_path / "services.conf"
    file.write_text(
        f"[shop]\nhost={info.host}\nport={info.port}\ndbname={info.dbname}\nuser={info.user}\n"
    )
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    table = f"by_service_{next(_numbers)}"
    with CredibleIndex.create(f"{where}#{table}", posteriors(3, 3), names(3)) as index:
        assert index.count() == 3
    with CredibleIndex.wrap(f"{where}#{table}", id="id", vector="mu") as index:
        assert index.count() == 3


def test_exact_searches_stay_exact_between_approximate_ones(server):
    gallery, ids = posteriors(300, 8), names(300)
    with CredibleIndex.create(f"{server.get_uri()}#plans", gallery, ids) as index:
        index.build("ivf", lists=60, probes=1)
        queries = au.VonMisesFisher(gallery.mu[:30], 1.0)
        exact = [hits.ids for hits in index.search(queries, 0.9, limit=20, exact=True)]
        loose = [hits.ids for hits in index.search(queries, 0.9, limit=20)]
        assert loose != exact
        assert [hits.ids for hits in index.search(queries, 0.9, limit=20, exact=True)] == exact
        assert exact[0] == [i for i, _ in brute_force(gallery, ids, queries[0], 0.9)][:20]
