"""Lance: sizes that it refuses, and indexes that were not finished."""

import threading
from contextlib import nullcontext

import pyarrow as pa
import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex
from aureole.engines._lance import LanceStore
from aureole.errors import InvalidInputError
from tests.engines.conftest import names, posteriors

NOBODY = au.VonMisesFisher(torch.zeros(0, 4), torch.zeros(0))


@pytest.mark.parametrize("rows", [0, 30])
def test_what_lance_cannot_take_is_refused_before(tmp_path, rows):
    pytest.importorskip("lance")
    gallery = posteriors(rows, 4) if rows else NOBODY
    with CredibleIndex.create(tmp_path / "gallery.lance", gallery, names(rows)) as index:
        with pytest.raises(InvalidInputError, match="Lance takes 4 links or more, but got 2"):
            index.build("hnsw", links=2)
        assert index.approximate is None


def test_many_rows_are_merged_into_a_table_with_an_index_of_ids(tmp_path):
    pytest.importorskip("lance")
    where, dim = tmp_path / "gallery.lance", 16
    n = 250_000  # more than Lance's default of 300 MB takes, which counts each batch with its whole column
    mu = torch.nn.functional.one_hot(torch.arange(n) % dim, dim).float()
    kappa = torch.arange(1.0, n + 1)

    def part(first, last):
        return au.VonMisesFisher(mu[first:last], kappa[first:last], validate_args=False)

    with CredibleIndex.create(where, part(0, 55_000), names(55_000)) as index:
        index.append(part(55_000, 55_010), names(10, 55_000))
        assert LanceStore.open(str(where))._indexed_ids() == 55_010
        index.append(part(55_010, n), names(n - 55_010, 55_010))
        assert index.upsert(part(0, n), names(n)) == n
        assert index.count() == n
        found = index.fetch(["row 0", "row 60000", f"row {n - 1}"])[0]
    assert sorted(found.kappa.tolist()) == [1, 60_001, n]


def test_ids_are_found_by_an_index_in_large_tables(tmp_path, monkeypatch):
    pytest.importorskip("lance")
    monkeypatch.setattr("aureole.engines._lance._SCANNED_IDS", 20)
    gallery = posteriors(60, 4)
    where = tmp_path / "gallery.lance"

    def part(first, last):
        return au.VonMisesFisher(gallery.mu[first:last], gallery.kappa[first:last])

    with CredibleIndex.create(where, part(0, 15), names(15)) as index:

        def indexed():
            return LanceStore.open(str(where))._indexed_ids()

        index.append(part(15, 20), names(5, 15))
        assert indexed() is None
        index.append(part(20, 30), names(10, 20))
        assert indexed() == 30
        index.append(part(30, 45), names(15, 30))  # few enough to be scanned
        assert indexed() == 30
        with pytest.raises(InvalidInputError, match="'row 31' is in the gallery already"):
            index.append(part(45, 47), ["row 31", "new"])
        assert index.upsert(part(45, 60), names(15, 45)) == 0
        assert indexed() == 60
        assert index.delete(["row 3", "row 59", "never there"]) == 2
        assert index.fetch(["row 4", "row 58"])[0].kappa.tolist() == pytest.approx(
            gallery.kappa[[4, 58]].tolist()
        )
        with pytest.raises(InvalidInputError, match="'row 58' is in the gallery already"):
            index.append(part(0, 2), ["row 3", "row 58"])
        assert index.count() == 58


def test_writers_without_a_common_lock_do_not_double_ids(tmp_path, monkeypatch):
    pytest.importorskip("lance")
    monkeypatch.setattr("aureole.engines._lance.locked", lambda where: nullcontext())
    where, gallery = tmp_path / "gallery.lance", posteriors(8, 4)
    CredibleIndex.create(where, NOBODY, [])
    for round_ in range(8):
        stored, refused = [], []

        def append(who, ids, stored=stored, refused=refused):
            index = CredibleIndex.open(where)
            try:
                index.append(gallery, ids)
                stored.append(who)
            except InvalidInputError:
                refused.append(who)

        ids = names(8, 8 * round_)
        writers = [threading.Thread(target=append, args=(who, ids)) for who in range(2)]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
        assert (len(stored), len(refused)) == (1, 1)
    index = CredibleIndex.open(where)
    assert sorted(i for ids, _, _ in index.scan() for i in ids) == sorted(names(64))


def test_tables_of_earlier_versions_take_changes(tmp_path):
    lance = pytest.importorskip("lance")
    where, gallery = str(tmp_path / "gallery.lance"), posteriors(8, 4)
    with CredibleIndex.create(where, gallery, names(8)) as index:
        assert index.count() == 8
    old = lance.dataset(where).to_table()
    plain = pa.field("id", pa.string())
    lance.write_dataset(old.cast(old.schema.set(0, plain)), where, mode="overwrite")
    with CredibleIndex.open(where) as index:
        assert index.upsert(gallery, names(8, 4)) == 4
        with pytest.raises(InvalidInputError, match="already"):
            index.append(gallery, names(8, 11))
        assert index.count() == 12
