"""The map of a gallery: neighbours stay together, rows keep their places, and the file is checked."""

import json

import numpy as np
import pytest
import torch

from aureole.caps import CredibleIndex
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.explorer import fit_map, read_map, write_map
from aureole.explorer._gallery_map import map_path
from aureole.explorer._gallery_table import GalleryTable

pytest.importorskip("faiss")
N, DIM, CLASSES = 600, 16, 6


@pytest.fixture(scope="module")
def posterior():
    """Rows in six well separated classes."""
    rng = torch.Generator().manual_seed(1)
    centres = torch.nn.functional.normalize(torch.randn(CLASSES, DIM, generator=rng), dim=-1)
    mu = centres[torch.arange(N) % CLASSES] + 0.1 * torch.randn(N, DIM, generator=rng)
    return VonMisesFisher(
        torch.nn.functional.normalize(mu, dim=-1), 1 + 50 * torch.rand(N, generator=rng)
    )


def ids(start, stop):
    return [f"item {i}" for i in range(start, stop)]


def part(posterior, rows):
    return VonMisesFisher(posterior.mu[rows], posterior.kappa[rows])


def nearest_class(found):
    """The share of rows whose nearest row on the map has the same class."""
    label = np.array([int(name.split()[1]) % CLASSES for name in found.ids])
    distance = ((found.xy[:, None] - found.xy[None]) ** 2).sum(-1)
    np.fill_diagonal(distance, np.inf)
    return (label[distance.argmin(1)] == label).astype(float), found.fitted.astype(bool)


def test_rows_lie_near_rows_of_their_class_also_those_that_are_placed(posterior):
    pytest.importorskip("openTSNE")
    index = CredibleIndex.create("faiss://", posterior, ids(0, N))
    steps = []
    found = fit_map(index, sample=300, observer=lambda *step: steps.append(step))
    same, fitted = nearest_class(found)
    assert (found.note.method, found.note.rows, found.note.fitted) == ("t-SNE", N, 300)
    assert fitted.sum() == 300
    assert same[fitted].mean() > 0.98
    assert same[~fitted].mean() > 0.98
    assert np.quantile(np.abs(found.xy), 0.99) < 2
    assert [name for name, done, total in steps if done == total][-1] == "placing"
    assert all(0 <= done <= total for _, done, total in steps)
    again = fit_map(index, sample=300)
    assert again.ids == found.ids
    assert (again.fitted == found.fitted).all()


@pytest.mark.parametrize("engine", ["faiss", "lance"])
def test_new_rows_are_on_the_next_map(tmp_path, posterior, engine):
    where = tmp_path / f"gallery.{engine}"
    with CredibleIndex.create(where, part(posterior, slice(0, 45)), ids(0, 45)) as index:
        index.origin = Origin(weights="a")
        assert read_map(index) is None
        assert GalleryTable.read(index).map["available"] is False
        first = write_map(index)
        assert map_path(str(where)) == tmp_path / f"gallery.{engine}.map"
        stored = read_map(index)
        assert stored.note == first.note
        assert (stored.xy == first.xy).all()
        index.append(part(posterior, slice(45, 60)), ids(45, 60))
        index.delete(["item 3"])
        table = GalleryTable.read(index)
        assert "15 rows are not on the map" in table.map["reason"]
        assert np.isnan(table.columns["map.x"].data).sum() == 15
        second = write_map(index)
        after = dict(zip(second.ids, second.xy.tolist(), strict=True))
        assert set(after) == set(ids(0, 60)) - {"item 3"}
        table = GalleryTable.read(index)
        assert table.map["reason"] is None
        for row, name in enumerate(table.ids(range(59))):
            assert [table.columns[axis].data[row] for axis in ("map.x", "map.y")] == after[name]
        index.origin = Origin(weights="another")
        assert read_map(index) is None


def test_galleries_of_a_few_rows_have_a_map():
    for n in (1, 2, 5):
        mu = torch.eye(5)[:n]
        index = CredibleIndex.create("faiss://", VonMisesFisher(mu, torch.ones(n)), ids(0, n))
        found = fit_map(index)
        assert found.xy.shape == (n, 2)
        assert np.isfinite(found.xy).all()


def test_a_map_in_memory_is_added_to_a_table(posterior):
    index = CredibleIndex.create("faiss://", part(posterior, slice(0, 40)), ids(0, 40))
    with pytest.raises(InvalidInputError, match="in memory"):
        write_map(index)
    table, version = GalleryTable.read(index), GalleryTable.read(index).version
    found = fit_map(index)
    table.add_map(found)
    assert table.version != version
    xy = dict(zip(found.ids, found.xy[:, 0].tolist(), strict=True))
    assert table.columns["map.x"].data.tolist() == [xy[name] for name in table.ids(range(40))]
    part_of = {entry["name"]: entry for entry in table.embed([1, 2])["columns"]}
    assert part_of["map.x"]["type"] == "f4"


@pytest.mark.parametrize("damage", ["cut", "text", "shape", "note"])
def test_a_damaged_file_is_reported_and_the_table_goes_without(tmp_path, posterior, damage):
    from safetensors.numpy import load_file, save_file

    where = tmp_path / "g.faiss"
    with CredibleIndex.create(where, part(posterior, slice(0, 40)), ids(0, 40)) as index:
        note = write_map(index).note
        path = map_path(str(where))
        arrays, content = load_file(path), path.read_bytes()
        if damage == "cut":
            path.write_bytes(content[: len(content) // 2])
        elif damage == "text":
            path.write_text("<script>alert(1)</script>")
        elif damage == "shape":
            arrays["xy"] = arrays["xy"][:-1]
            save_file(arrays, path, {"note": json.dumps(vars(note))})
        else:
            save_file(arrays, path, {"note": json.dumps({"format": "aureole-map-2"})})
        with pytest.raises(DamagedGalleryError, match="is not a map of a gallery"):
            read_map(index)
        table = GalleryTable.read(index)
        assert table.map["available"] is False
        assert "is not a map" in table.map["reason"]
        assert write_map(index).note.rows == 40
