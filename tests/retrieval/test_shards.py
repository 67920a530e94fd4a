"""Sharded galleries: the same hits as one gallery, changes that are killed half-way, and damaged manifests."""

import json

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.retrieval import CredibleIndex, Origin
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
        from aureole.retrieval._shards import _distribute

        return [part for _, part in _distribute(rows, store._manifest)]

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
    from aureole.retrieval._row_blocks import pick

    return pick(rows, np.array([0]))


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
    with pytest.raises(MissingInputError, match="index split"):
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
    assert not (tmp_path / "none.shards").exists()
    with pytest.raises(InvalidInputError, match="no shards"):
        one.rebalance(2)
