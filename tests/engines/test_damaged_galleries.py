"""Damaged galleries of every engine: answers stay right, or a typed error names the gallery; check finds the rest."""

import os
import shutil
from random import Random

import numpy as np
import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex
from aureole.engines import Origin
from aureole.engines._integrity import LARGEST_NOTE, parse_note
from aureole.engines._store import parse_sizes
from aureole.errors import AureoleError, DamagedGalleryError, InvalidInputError, WriteError
from tests.engines import gallery_damage
from tests.engines.conftest import names, posteriors
from tests.engines.damaged_galleries import run

pytest.importorskip("faiss")
pytest.importorskip("lance")
COUNT = 20


@pytest.mark.parametrize("engine", ["faiss", "lance", "postgres"])
def test_damaged_galleries_open_right_or_raise_typed_errors(engine, request):
    address = request.getfixturevalue("server").get_uri() if engine == "postgres" else None
    cases = run(engine, COUNT, seed=1, address=address)
    assert len(cases) == COUNT
    assert [case for case in cases if case.outcome == "wrong"] == []
    for case in cases:
        assert case.outcome != "typed" or case.detail.count("\n") == 0


def test_a_valid_gallery_has_no_problems(durable):
    for kind in (None, "ivf", "hnsw"):
        where, done = durable(), []
        gallery_damage.make_gallery(where, kind)
        with CredibleIndex.open(where) as index:
            assert index.check(observer=done.append) == []
            assert done[-1] == index.count() == 296


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_index_of_another_metric_is_damage(tmp_path, kind):
    lance = pytest.importorskip("lance")
    where = tmp_path / "gallery.lance"
    gallery_damage.make_gallery(str(where), kind)
    name = {"ivf": "IVF_FLAT", "hnsw": "IVF_HNSW_FLAT"}[kind]
    lists = 4 if kind == "ivf" else 1
    lance.dataset(where).create_index("mu", name, metric="l2", replace=True, num_partitions=lists)
    with CredibleIndex.open(where) as index:
        assert index.approximate is None
        (problem,) = index.check()
        assert "with l2" in problem


POISON = [("kappa", np.nan), ("kappa", -1.0), ("mu", 0.0), ("mu", 1e30), ("mu", np.nan)]


@pytest.mark.parametrize(("column", "value"), POISON)
def test_impossible_values_are_found(tmp_path, column, value):
    lance, pa = pytest.importorskip("lance"), pytest.importorskip("pyarrow")
    where = str(tmp_path / "gallery.lance")
    CredibleIndex.create(where, posteriors(50, 4), names(50)).close()
    table = lance.dataset(where).to_table()
    mu = np.stack(table["mu"].combine_chunks().to_numpy(zero_copy_only=False))
    arrays = {"mu": mu, "kappa": table["kappa"].to_numpy().copy()}
    arrays[column][7] = value
    flat = pa.array(arrays["mu"].reshape(-1))
    columns = {"id": table["id"], "mu": pa.FixedSizeListArray.from_arrays(flat, 4)}
    columns["kappa"] = pa.array(arrays["kappa"])
    made = pa.table(columns).replace_schema_metadata(table.schema.metadata)
    lance.write_dataset(made, where, mode="overwrite")
    with CredibleIndex.open(where) as index:
        (problem,) = index.check()
        assert problem.startswith("1 row has a")
        assert column in problem
        assert "'row 7'" in problem
        with pytest.raises(DamagedGalleryError, match=r"gallery\.lance is damaged"):
            index.fetch(["row 7"])


def test_duplicate_ids_are_found(tmp_path):
    lance, pa = pytest.importorskip("lance"), pytest.importorskip("pyarrow")
    where = str(tmp_path / "gallery.lance")
    CredibleIndex.create(where, posteriors(5, 4), names(5)).close()
    table = lance.dataset(where).to_table()
    lance.write_dataset(pa.concat_tables([table, table.slice(2, 1)]), where, mode="append")
    with CredibleIndex.open(where) as index:
        assert index.check() == ["6 rows have the id of another row."]


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", "[" * 100_000, '{"a":' * 100_000, "9" * 5000, "x" * (LARGEST_NOTE + 1)]
)
def test_notes_are_limited(text):
    with pytest.raises(DamagedGalleryError, match="the note is damaged"):
        parse_note(text, "the note")


@pytest.mark.parametrize(
    "note",
    ["null", "[]", "{}", '{"kind": "ivf"}', '{"kind": [], "sizes": {}}', '{"kind": "ivf", "sizes": []}',
     '{"kind": "ivf", "sizes": {"lists": true}}', '{"kind": "hnsw", "sizes": {"width": 1e9}}'],
)  # fmt: skip
def test_notes_of_indexes_are_validated(note):
    with pytest.raises(DamagedGalleryError, match="is damaged"):
        parse_sizes(note, "ivf", "gallery")


def test_hostile_notes_of_every_engine(durable):
    where = durable()
    with CredibleIndex.create(where, posteriors(5, 4), names(5)) as index:
        index.origin = Origin(16.0)
        query = au.VonMisesFisher(torch.eye(4)[0], 3.0)
        for text in gallery_damage.TEXTS:
            index._store.write_note("origin", text)
            with pytest.raises(AureoleError):
                index.search(query)
            assert index.check()


@pytest.mark.parametrize("scheme", ["s3", "gs", "https"])
def test_addresses_that_an_engine_cannot_write_are_refused(tmp_path, monkeypatch, scheme):
    monkeypatch.chdir(tmp_path)
    where = f"{scheme}://bucket/gallery.faiss"
    for work in (
        lambda: CredibleIndex.create(where, posteriors(5, 4), names(5)),
        lambda: CredibleIndex.open(where),
    ):
        with pytest.raises(
            InvalidInputError, match=r"FAISS stores galleries in local folders only\. Use Lance"
        ):
            work()
    with pytest.raises(InvalidInputError, match="address of a remote store"):
        CredibleIndex.create(f"{scheme}:/bucket/gallery.lance", posteriors(5, 4), names(5))
    with pytest.raises(InvalidInputError, match="has the scheme 'ftp', but Lance"):
        CredibleIndex.create("ftp://bucket/gallery.lance", posteriors(5, 4), names(5))
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_a_typed_error_and_leaves_the_gallery(tmp_path):
    resource = pytest.importorskip("resource")
    for engine in ("faiss", "lance"):
        where = tmp_path / f"gallery.{engine}"
        index = CredibleIndex.create(where, posteriors(10, 4), names(10))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(WriteError, match=r"limit reached while writing .*Free some space"):
                index.append(posteriors(2000, 4), names(2000, 10))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert CredibleIndex.open(where).count() == 10
        assert CredibleIndex.open(where).check() == []


def test_damage_changes_a_gallery(tmp_path):
    base = tmp_path / "base.faiss"
    gallery_damage.make_gallery(str(base), "ivf")
    for number in range(10):
        copy = tmp_path / f"{number}.faiss"
        shutil.copy(base, copy)
        # a file that replaces itself stays as it was
        done = gallery_damage.damage("faiss", str(copy), Random(number))
        same = copy.exists() and copy.read_bytes() == base.read_bytes()
        assert same <= (done == "exchanged")
