"""What all engines share: addresses, approximate indexes of any size, writers that are killed or compete."""

import threading

import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex
from aureole.engines._addresses import shown_address
from aureole.engines._store import check_build, default_lists, probes_of, width_of
from aureole.errors import AureoleError, InvalidInputError
from tests.engines.conftest import address, everything, names, posteriors
from tests.engines.killed_writers import OPERATIONS, killed, writers

SECRET = "hunter2"
EVERYONE = au.VonMisesFisher(torch.eye(4)[0], 0.0)
NOBODY = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))


@pytest.mark.parametrize(
    "where",
    [
        "postgresql://ann:hunter2@127.0.0.1:1/db#t",
        "postgresql://ann:hunter2@127.0.0.1:1/db?hunter2#t",
        "postgresql://ann:hunter2@127.0.0.1:hunter2/db",
        "postgresql://ann:p@hunter2@127.0.0.1:1/db",
        "postgresql://ann:p/hunter2@127.0.0.1:1/db",
        "postgresql://ann:p?hunter2@127.0.0.1:1/db",
        "postgresql://ann:p#hunter2@127.0.0.1:1/db",
        "postgresql://127.0.0.1:1/db?user=ann&password=hunter2",
        "postgresql://ann:%zzhunter2@127.0.0.1:1/db",
        "postgresql+psycopg://ann:hunter2@127.0.0.1:1/db",
        "mysql://ann:hunter2@127.0.0.1/db",
    ],
)
def test_no_error_shows_a_password(where):
    if ":hunter2/db" not in where:  # there it is a port
        assert SECRET not in shown_address(where)
    with pytest.raises(AureoleError) as caught:
        CredibleIndex.open(where)
    if ":hunter2/db" not in where:
        assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_paths_are_shown_as_they_are():
    for where in ("a@b/gallery.lance", "./x#y.faiss", "faiss://", "s3://bucket/g.lance"):
        assert shown_address(where) == where


@pytest.mark.parametrize("rows", [1, 2, 14, 15, 40])
def test_lists_that_nobody_asked_for_are_never_too_many(place, rows):
    with CredibleIndex.create(place(), posteriors(rows, 4), names(rows)) as index:
        index.build("ivf")
        assert index.approximate == {"kind": "ivf", "lists": default_lists(rows)}
        index.build("ivf", probes=10**6)  # all of them
        assert sorted(index.search(EVERYONE, 1.0).ids) == sorted(names(rows))


@pytest.mark.parametrize("sizes", [{}, {"width": 1}, {"links": 4}, {"links": 33}, {"links": 100}])
@pytest.mark.parametrize("rows", [0, 1, 30])
def test_graphs_of_any_size(place, sizes, rows):
    gallery = posteriors(rows, 4) if rows else NOBODY
    with CredibleIndex.create(place(), gallery, names(rows)) as index:
        index.build("hnsw", **sizes)
        none = index.engine == "Lance" and rows == 0  # Lance builds no index of an empty table
        assert index.approximate == (None if none else {"kind": "hnsw", **sizes})
        query = au.VonMisesFisher(torch.eye(4)[:2], 3.0)
        for hits, exact in zip(index.search(query), index.search(query, exact=True), strict=True):
            assert set(hits.ids) <= set(exact.ids)
        assert len(index.search(query, limit=2)) == 2
        index.append(au.VonMisesFisher(torch.eye(4)[:1], 3.0), ["new"])
        assert "new" in index.search(au.VonMisesFisher(torch.eye(4)[0], 1e6)).ids


def test_a_default_for_any_number_of_rows():
    assert [default_lists(rows) for rows in (0, 1, 15, 16, 17, 10_000)] == [1, 1, 15, 16, 16, 400]
    assert default_lists(67_500_000) > 32_768  # more than pgvector takes
    assert [probes_of({}, lists) for lists in (1, 15, 16, 400)] == [1, 1, 1, 25]
    assert probes_of({"probes": 7}, 5) == 5
    assert [width_of({}), width_of({"width": 300})] == [128, 300]


@pytest.mark.parametrize(
    ("kind", "sizes", "message"),
    [
        ("hnsw", {"links": 1}, "links must be an integer of at least 2"),
        ("hnsw", {"width": 0}, "width must be an integer of at least 1"),
        ("ivf", {"lists": 0}, "lists must be"),
        ("ivf", {"probes": True}, "probes must be"),
        ("ivf", {"links": 4}, "build takes"),
        ("flat", {}, "build takes"),
    ],
)
def test_sizes_that_are_none(kind, sizes, message):
    with pytest.raises(InvalidInputError, match=message):
        check_build(kind, sizes)


@pytest.mark.long
@pytest.mark.parametrize("engine", ["lance", "postgres", "faiss"])
def test_killed_writers_leave_a_whole_gallery(engine, request, tmp_path):
    with writers() as process:
        for operation in OPERATIONS:
            found = killed(process, address(engine, request, tmp_path), operation, moments=3)
            assert found["acknowledged"] >= 3, operation
            assert (found["lost"], found["doubled"], found["torn"]) == (0, 0, 0), operation


def test_two_writers_take_turns(durable):
    where = durable()
    gallery = posteriors(200, 4)
    CredibleIndex.create(where, posteriors(1, 4, seed=9), ["first"]).close()
    won: list[str] = []
    lost: list[str] = []

    def write(writer):
        index = CredibleIndex.open(where)
        for batch in range(8):
            rows = slice(writer * 100 + batch * 10, writer * 100 + batch * 10 + 10)
            part = au.VonMisesFisher(gallery.mu[rows], gallery.kappa[rows])
            index.append(part, [f"{writer}/{i}" for i in range(batch * 10, batch * 10 + 10)])
            try:
                index.append(part, [f"both/{batch}/{i}" for i in range(10)])
                won.append(f"{batch}")
            except InvalidInputError as error:
                lost.append(str(error))
        index.close()

    writers = [threading.Thread(target=write, args=(w,)) for w in (0, 1)]
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join(timeout=60)
    index = CredibleIndex.open(where)
    ids = everything(index)
    assert len(ids) == len(set(ids)) == 1 + 160 + 80
    assert sorted(won) == [str(batch) for batch in range(8)]  # each contested batch was taken once
    assert len(lost) == 8
    assert all("already" in message for message in lost)
    index.close()
