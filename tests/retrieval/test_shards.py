"""Sharded galleries: the same hits as one gallery, changes that are killed half-way, and damaged manifests."""

import json
import time

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import (
    DamagedGalleryError,
    InvalidInputError,
    MissingInputError,
    ShardUnavailableError,
)
from aureole.retrieval import CredibleIndex, LanceStore, Origin
from aureole.retrieval._shards import ShardedStore

N, DIM = 600, 8


def posteriors(n, seed=0):
    rng = torch.Generator().manual_seed(seed)
    mu = torch.nn.functional.normalize(torch.randn(n, DIM, generator=rng), dim=-1)
    return au.VonMisesFisher(mu, torch.rand(n, generator=rng) * 60 + 5)


IDS = [f"item {i}" for i in range(N)]
PAYLOAD = {"shop": ["north", "south"] * (N // 2), "price": list(range(N))}


@pytest.fixture
def pair(tmp_path):
    """One gallery and the same one in shards."""
    rows = posteriors(N), IDS, PAYLOAD
    return (
        CredibleIndex.create("faiss://", *rows),
        CredibleIndex.create(tmp_path / "gallery.shards", *rows),
    )


def same(one, sharded, **search):
    queries = posteriors(12, seed=1)
    columns = ("shop",)
    for left, right in zip(
        one.search(queries, 0.9, columns=columns, **search),
        sharded.search(queries, 0.9, columns=columns, **search),
        strict=True,
    ):
        assert left.ids == right.ids
        assert torch.equal(left.cosine, right.cosine)
        assert left.payload == right.payload


@pytest.mark.parametrize(
    "search", [{}, {"limit": 5}, {"filter": {"shop": "north", "price": (10, 300)}}]
)
def test_the_hits_are_those_of_one_gallery(pair, search):
    same(*pair, **search)


def test_changes_go_to_the_shard_of_their_id(pair, tmp_path):
    one, sharded = pair
    for index in pair:
        assert (
            index.upsert(
                posteriors(3, 2), ["item 5", "new", "item 9"], {"shop": ["x"] * 3, "price": [1] * 3}
            )
            == 2
        )
        assert index.delete(["item 7", "item 8", "nothing"]) == 2
        with pytest.raises(InvalidInputError, match="already"):
            index.append(
                posteriors(2, 3), ["fresh", "item 1"], {"shop": ["y"] * 2, "price": [1] * 2}
            )
    assert one.count() == sharded.count() == N - 1
    same(*pair)
    again = CredibleIndex.open(tmp_path / "gallery.shards")
    same(one, again)
    assert again.check() == []
    _, payload = again.fetch(["item 9", "item 3"], columns=("price",))
    assert payload == {"price": [1, 3]}


def test_an_interrupted_change_is_completed_by_the_next_process(pair, tmp_path, monkeypatch):
    _, sharded = pair
    real, calls = ShardedStore._apply, []

    def killed(self, rows, removed):
        """Only the first shard takes part."""
        calls.append(len(rows))
        self._stores[0].upsert(next(part for part in _parts(self, rows)))
        raise KeyboardInterrupt

    def _parts(store, rows):
        from aureole.retrieval._shard_writer import distribute

        return distribute(rows, store._manifest)

    monkeypatch.setattr(ShardedStore, "_apply", killed)
    names = [f"late {i}" for i in range(40)]
    with pytest.raises(KeyboardInterrupt):
        sharded.append(posteriors(40, 4), names, {"shop": ["z"] * 40, "price": [0] * 40})
    monkeypatch.setattr(ShardedStore, "_apply", real)
    assert calls == [40]
    assert 0 < sharded.count() - N < 40
    again = CredibleIndex.open(tmp_path / "gallery.shards")
    assert again.count() == N + 40
    assert again.check() == []


def test_rebalance_keeps_all_rows_and_other_processes_follow(pair, tmp_path):
    one, sharded = pair
    sharded.origin = Origin(20.0)
    reader = CredibleIndex.open(tmp_path / "gallery.shards")
    moved = []
    sharded.rebalance(7, observer=moved.append)
    assert moved[-1] == N
    one.origin = Origin(20.0)
    for index in (sharded, reader):
        same(one, index)
        assert index.origin.kappa_pos == 20.0
    assert len(list((tmp_path / "gallery.shards").glob("*.lance"))) == 7
    assert sharded.check() == []


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda index: index.count(), N),
        (lambda index: sum(index.shards.values()), N),
        (lambda index: len(index.shards), 7),
        (lambda index: index.approximate, None),
        (lambda index: index.check(), []),
    ],
)
def test_the_first_call_after_a_rebalance_elsewhere_follows_it(pair, tmp_path, read, expected):
    _, sharded = pair
    reader = CredibleIndex.open(tmp_path / "gallery.shards")
    sharded.rebalance(7)
    assert read(reader) == expected


def test_a_rebalance_that_fails_changes_nothing(pair, tmp_path, monkeypatch):
    one, sharded = pair

    def full(count):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sharded.rebalance(3, observer=full)
    same(one, CredibleIndex.open(tmp_path / "gallery.shards"))
    sharded.rebalance(3)
    same(one, sharded)
    assert len(list((tmp_path / "gallery.shards").glob("*.lance"))) == 3


def test_a_row_in_the_wrong_shard_is_found_by_check(pair, tmp_path):
    _, sharded = pair
    sharded._store._stores[0].upsert(_one_row(sharded, number=1))
    assert any("another shard" in problem for problem in sharded.check())


def _one_row(index, number):
    rows = next(index._store._stores[number].scan(["shop", "price"], vectors=True))
    from aureole.retrieval._schema import pick_rows

    return pick_rows(rows, np.array([0]))


@pytest.mark.parametrize(
    "change",
    [
        {"shards": ["../../secret.lance"]},
        {"shards": []},
        {"shards": ["1-0.lance", "1-0.lance"]},
        {"shards": [3]},
        {"shards": {"a": 1}},
        {"generation": "x"},
        {"schema": None},
        {"format": "other"},
    ],
)
def test_a_damaged_manifest_is_refused(pair, tmp_path, change):
    path = tmp_path / "gallery.shards" / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DamagedGalleryError, match="manifest"):
        CredibleIndex.open(tmp_path / "gallery.shards")


def test_a_missing_manifest_and_a_missing_shard(pair, tmp_path):
    with pytest.raises(MissingInputError, match="index copy"):
        CredibleIndex.open(tmp_path / "other.shards")
    folder = tmp_path / "gallery.shards"
    next(folder.glob("*-2.lance")).rename(folder / "away")
    with pytest.raises(MissingInputError, match="does not exist"):
        CredibleIndex.open(folder)


def test_a_damaged_journal_is_refused(pair, tmp_path):
    (tmp_path / "gallery.shards" / "journal.safetensors").write_bytes(b"nothing")
    with pytest.raises(DamagedGalleryError, match="journal"):
        CredibleIndex.open(tmp_path / "gallery.shards")


def test_an_index_of_all_shards(pair):
    one, sharded = pair
    assert sharded.approximate is None
    sharded.build("ivf", lists=4, probes=4)
    assert sharded.approximate == {"kind": "ivf", "lists": 4, "probes": 4}
    same(one, sharded)
    sharded.build("ivf", compressed=True, lists=4, probes=4)
    assert sharded.approximate["compressed"] == "scalar"
    assert sharded.check_recall(posteriors(20, 5), 0.9).share > 0.98


def test_a_copy_to_shards_to_one_table_and_back(pair, tmp_path):
    one, sharded = pair
    one.origin = sharded.origin = Origin(20.0)
    table = sharded.copy(tmp_path / "table.lance")
    memory = table.copy(tmp_path / "memory.faiss")
    again = memory.copy(tmp_path / "again.shards", shards=3)
    assert len(again.shards) == 3
    assert sum(again.shards.values()) == N
    for copy in (table, memory, again):
        assert copy.origin.kappa_pos == 20.0
        same(one, copy)
    with pytest.raises(InvalidInputError, match="exists"):
        one.copy(tmp_path / "table.lance")
    with pytest.raises(InvalidInputError, match="must end in"):
        one.copy(tmp_path / "other.lance", shards=2)
    with pytest.raises(InvalidInputError, match="1 to 1024"):
        one.copy(tmp_path / "none.shards", shards=0)
    copied = []
    with pytest.raises(InvalidInputError, match=r"cannot be the address of a copy"):
        one.copy("faiss://", observer=copied.append)
    assert copied == []
    assert not (tmp_path / "none.shards").exists()
    with pytest.raises(InvalidInputError, match="no shards"):
        one.rebalance(2)


class FaultyShard:
    """A shard whose process does not respond while it is in ``dead``."""

    def __init__(self, store, number, dead):
        self.store, self.number, self.dead = store, number, dead

    def _check(self):
        if self.number in self.dead:
            raise ShardUnavailableError("no answer")

    def candidates(self, *arguments):
        self._check()
        return self.store.candidates(*arguments)

    def nearest(self, *arguments):
        self._check()
        return self.store.nearest(*arguments)


class FaultyPool:
    """Searches shards in this process, and pretends that some do not respond."""

    def __init__(self):
        self.dead, self.opened = set(), []

    def open(self, addresses):
        self.opened.append(addresses)
        stores = [LanceStore.open(address) for address in addresses]
        return [FaultyShard(store, number, self.dead) for number, store in enumerate(stores)]

    def close(self):
        pass


@pytest.mark.parametrize("search", [{}, {"limit": 5}])
def test_without_a_shard_the_hits_are_those_of_the_others(pair, tmp_path, search):
    where, pool, queries = tmp_path / "gallery.shards", FaultyPool(), posteriors(12, seed=1)
    index = CredibleIndex(ShardedStore.open(str(where), pool))
    same(pair[0], index, **search)
    pool.dead.add(1)
    with CredibleIndex.open(where / "1-1.lance") as shard:
        lost = [name for names, _, _ in shard.scan() for name in names]
    pair[0].delete(lost)
    same(pair[0], index, **search)
    hits = index.search(queries, 0.9, **search)
    assert {each.missing_shards for each in hits} == {("1-1.lance",)}
    assert "1 shards missing" in repr(hits[0])
    # rows by id come from the tables
    assert index.fetch(lost[:2])[0].batch_shape == (2,)
    pool.dead.update({0, 2, 3})
    with pytest.raises(ShardUnavailableError, match="no shard"):
        index.search(queries, 0.9, **search)
    pool.dead.clear()
    assert not index.search(queries, 0.9, **search)[0].missing_shards


def test_after_a_rebalance_the_pool_searches_the_new_shards(pair, tmp_path):
    where, pool = tmp_path / "gallery.shards", FaultyPool()
    index = CredibleIndex(ShardedStore.open(str(where), pool))
    pair[1].rebalance(2)
    same(pair[0], index)  # which notices the new manifest
    deadline = time.monotonic() + 20
    while len(pool.opened) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert [len(addresses) for addresses in pool.opened] == [4, 2]
    same(pair[0], index)


def test_large_galleries_are_filled_in_blocks_without_looking_up_ids(tmp_path, monkeypatch):
    from aureole.retrieval import _shard_writer
    from aureole.retrieval._lance import LanceStore
    from aureole.retrieval._schema import Schema, join_rows

    monkeypatch.setattr(_shard_writer, "_HELD_BYTES", 150 * DIM * 4)
    monkeypatch.setattr(LanceStore, "append", None)  # it looks up ids
    schema = Schema(DIM, {}, 5.0)
    blocks = [_block(range(start, start + 100)) for start in range(0, 1000, 100)]
    seen = []
    store = ShardedStore.fill(
        str(tmp_path / "g.shards"), schema, iter(blocks), shards=3, observer=seen.append
    )
    assert seen == list(range(100, 1001, 100))
    assert store.count() == 1000
    every = join_rows(blocks, [], DIM)
    stored = join_rows(list(store.scan([], vectors=True)), [], DIM)
    place = {name: i for i, name in enumerate(stored.ids.tolist())}
    order = [place[name] for name in every.ids.tolist()]
    assert np.array_equal(stored.mu[order], every.mu)
    assert np.array_equal(stored.kappa[order], every.kappa)
    assert store.problems() == []
    store.close()


@pytest.mark.parametrize("second", [range(5), range(99, 150)])
def test_an_id_that_occurs_twice_is_refused_and_leaves_no_gallery(tmp_path, second):
    from aureole.retrieval._schema import Schema

    where, schema = tmp_path / "g.shards", Schema(DIM, {}, 5.0)
    with pytest.raises(InvalidInputError, match="occurs more than once"):
        ShardedStore.fill(str(where), schema, iter([_block(range(100)), _block(second)]))
    with pytest.raises(MissingInputError):
        CredibleIndex.open(where)
    ShardedStore.fill(str(where), schema, iter([_block(range(100))])).close()
    with CredibleIndex.open(where) as index:
        assert index.count() == 100


def test_two_ids_with_the_same_hash_are_told_apart(tmp_path):
    from aureole.retrieval._lance import LanceStore
    from aureole.retrieval._schema import Schema
    from aureole.retrieval._shard_writer import _check_distinct

    store = LanceStore.create(str(tmp_path / "g.lance"), Schema(DIM, {}, 5.0), _block(range(4)))
    _check_distinct(np.array([hash("1"), hash("1"), hash("2")]), [store])  # "1" is stored once


def _block(rows):
    from aureole.retrieval._schema import Rows, object_array

    part = posteriors(len(rows), seed=rows[0])
    ids = object_array([str(row) for row in rows])
    return Rows(ids, part.mu.numpy(), part.kappa.numpy(), {})
