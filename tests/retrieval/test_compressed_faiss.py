"""Compressed FAISS galleries: what stays in memory, files of rows on disk, and damaged ones."""

import contextlib
import json
import shutil
import struct

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import DamagedGalleryError, InvalidInputError
from aureole.retrieval import CredibleIndex
from aureole.retrieval._mapped_rows import Column, MappedText, hash_arrays, map_arrays
from aureole.retrieval._schema import object_array, pack_strings
from tests.retrieval.conftest import names, posteriors

pytest.importorskip("faiss")
ODD = ["", "ü" * 512, "日本 🦊", "'; DROP TABLE x; --", "\n"]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """(Folder, posteriors, ids) of a compressed gallery that is only copied."""
    gallery, ids = posteriors(1300, 16, ties=50), [*ODD, *names(1295)]
    folder = tmp_path_factory.mktemp("template") / "g.faiss"
    payload = {"shop": [f"s{i % 3}" for i in range(1300)], "stock": list(range(1300))}
    with CredibleIndex.create(folder, gallery, ids, payload) as index:
        index.build("ivf", compressed=True)
    return folder, gallery, ids


@pytest.fixture
def made(template, tmp_path):
    """A copy of it."""
    shutil.copytree(template[0], tmp_path / "g.faiss")
    return tmp_path / "g.faiss", *template[1:]


def memory_per_row(store):
    """Bytes of codes, positions and flags per row."""
    index, rows = store._vectors.approximation.index, len(store._alive)
    codes = sum(index.invlists.list_size(i) for i in range(index.nlist)) * (index.code_size + 8)
    assert store._vectors.flat.ntotal == 0  # no vectors
    return (codes + store._alive.nbytes) / rows


@pytest.mark.parametrize("dim", [64, 128])
def test_a_row_takes_at_most_64_bytes_of_memory(tmp_path, dim):
    with CredibleIndex.create(tmp_path / "g.faiss", posteriors(2000, dim), names(2000)) as index:
        index.build("ivf", compressed=True)
        store = index._store
        assert memory_per_row(store) <= 64
        for arrays in store._mapped._files:
            assert all(isinstance(array, np.memmap) for array in arrays.values())
        assert not isinstance(store._place, dict)


def test_memory_only_galleries_cannot_be_compressed():
    with CredibleIndex.create("faiss://", posteriors(30, 8), names(30)) as index:
        with pytest.raises(InvalidInputError, match="use a folder"):
            index.build("ivf", compressed=True)
        assert index.approximate is None


def test_many_changes_are_merged(made, monkeypatch):
    monkeypatch.setattr("aureole.retrieval._faiss._MOST_FILES", 6)
    folder, gallery, ids = made
    late = posteriors(20, 16, seed=9)
    with CredibleIndex.open(folder) as index:
        for row in range(20):
            index.append(late[row : row + 1], [f"late {row}"], {"shop": ["x"], "stock": [row]})
            if row % 3 == 0:
                assert index.delete([f"late {row}", ids[row]]) == 2
        assert len(list(folder.glob("*.safetensors"))) <= 8
        gone = {i for row in range(0, 20, 3) for i in (f"late {row}", ids[row])}
        expected = {*ids, *(f"late {row}" for row in range(20))} - gone
        assert index.count() == len(expected)
        assert {name for part, _, _ in index.scan() for name in part} == expected
        for row in (1, 5, 19):
            point = au.VonMisesFisher(late.mu[row], torch.inf)
            assert index.search(point, columns=["stock"]).payload == {"stock": [row]}
        assert index.check() == []
        posterior, _ = index.fetch(["late 5", ids[4]])
        torch.testing.assert_close(posterior.mu, torch.stack([late.mu[5], gallery.mu[4]]))
    with CredibleIndex.open(folder) as index:
        index.build("hnsw")  # in memory again
        assert {name for part, _, _ in index.scan() for name in part} == expected


def rewrite(folder, change, kind="rows"):
    """Replace the content of a file of the snapshot, and drop the hashes that would notice it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    name = manifest["index"]["file"] if kind == "index" else manifest["log"][0]["rows"]
    content = change(bytearray((folder / name).read_bytes()))
    (folder / name).write_bytes(content)
    manifest["sha256"] = {}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def with_header(edit):
    """A change of the JSON header of a safetensors file."""

    def change(content):
        length = struct.unpack("<Q", content[:8])[0]
        header = json.loads(content[8 : 8 + length])
        edit(header)
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + content[8 + length :]

    return change


HOSTILE = {
    "empty": lambda content: b"",
    "short": lambda content: content[:100],
    "cut": lambda content: content[:-64],
    "long header": lambda content: struct.pack("<Q", 2**63) + content[8:],
    "no json": lambda content: content[:8] + b"\xff" * 50 + content[58:],
    "other type": with_header(lambda header: header["mu"].update(dtype="F64")),
    "unknown type": with_header(lambda header: header["mu"].update(dtype="O")),
    "other shape": with_header(lambda header: header["mu"].update(shape=[1300, 17])),
    "negative": with_header(lambda header: header["mu"].update(shape=[-1300, -16])),
    "huge": with_header(lambda header: header["kappa"].update(shape=[2**62, 4])),
    "outside": with_header(lambda header: header["kappa"].update(data_offsets=[2**40, 2**40 + 5200])),
    "strings": with_header(lambda header: header["kappa"].update(data_offsets=["0", "5200"])),
    "missing": with_header(lambda header: header.pop("id.hash")),
    "list": with_header(lambda header: header.update({"mu": [1, 2]})),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_damaged_files_of_rows(made, name):
    rewrite(made[0], HOSTILE[name])
    with pytest.raises(DamagedGalleryError):
        CredibleIndex.open(made[0])


def test_damaged_values_are_noticed_when_they_are_read(made):
    folder, gallery, _ = made

    def change(content, key, values):
        length = struct.unpack("<Q", content[:8])[0]
        first, last = json.loads(content[8 : 8 + length])[key]["data_offsets"]
        content[8 + length + first : 8 + length + last] = np.resize(
            values, (last - first) // values.itemsize
        ).tobytes()
        return content  # fmt: skip

    rewrite(folder, lambda content: change(content, "id.order", np.array([2**40])))
    with CredibleIndex.open(folder) as index, pytest.raises(DamagedGalleryError):
        index.fetch(["row 3"])
    for key, values in (
        ("mu", np.array([np.nan], np.float32)),
        ("kappa", np.array([-1], np.float32)),
        ("id.ends", np.array([2**50])),
        ("id.text", np.array([255], np.uint8)),
    ):
        rewrite(folder, lambda content, key=key, values=values: change(content, key, values))
        with CredibleIndex.open(folder) as index:
            with pytest.raises(DamagedGalleryError):
                index.search(au.VonMisesFisher(gallery.mu[0], 1.0), 0.9)
            assert index.check() != []


def test_a_changed_byte_is_found_by_the_check(made):
    folder, _, _ = made
    name = json.loads((folder / "manifest.json").read_text())["log"][0]["rows"]
    content = bytearray((folder / name).read_bytes())
    content[-3] ^= 1
    (folder / name).write_bytes(content)
    with CredibleIndex.open(folder) as index:
        assert any("SHA-256" in problem for problem in index.check())


@pytest.mark.parametrize("seed", range(6))
def test_damaged_codes(made, seed):
    """Bytes of the index change: a typed error, or hits that are members with their exact cosines."""
    folder, gallery, ids = made
    rng = np.random.default_rng(seed)

    def change(content):
        for place in rng.integers(0, 300 if seed < 4 else len(content), 4):
            content[place] = rng.integers(256)
        return content if seed else content[: len(content) // 2]

    rewrite(folder, change, "index")
    with contextlib.suppress(DamagedGalleryError), CredibleIndex.open(folder) as index:
        query = au.VonMisesFisher(gallery.mu[7], 9.0)
        exact = index.search(query, 0.9, exact=True)
        assert set(index.search(query, 0.9).ids) <= set(exact.ids) <= set(ids)


@pytest.mark.parametrize(
    "change",
    [{"code": "half"}, {"code": "scalar"}, {"bytes": 8}, {"bytes": -1}, {"errors": [[-1, 9]]}],
)
def test_a_damaged_manifest(made, change):
    folder = made[0]
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["index"]["compression"] |= change
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DamagedGalleryError):
        CredibleIndex.open(folder)


def test_columns_of_several_files():
    texts = [object_array(["a", "ü", ""]), object_array(["日本", "b"])]
    parts = [MappedText(*pack_strings(part.tolist())) for part in texts]
    column = Column(parts, object_array([]))
    assert len(column) == 5
    assert column[np.array([4, 0, 3, 1, 2])].tolist() == ["b", "a", "日本", "ü", ""]
    assert column[1:4].tolist() == ["ü", "", "日本"]
    assert column[np.zeros(0, np.int64)].tolist() == []
    with pytest.raises(IndexError):
        column[np.array([5])]
    numbers = Column([np.arange(3.0), np.arange(3.0, 7.0)], np.zeros(0))
    assert numbers[np.array([6, 0, 3])].tolist() == [6, 0, 3]


def test_maps_equal_what_was_saved(tmp_path):
    from safetensors.numpy import save_file

    arrays = {"mu": np.random.default_rng(0).random((4, 3)).astype(np.float32)} | hash_arrays(ODD)
    arrays |= {"flag": np.array([True, False]), "none": np.zeros((0, 3), np.float32)}
    save_file(arrays, tmp_path / "x.safetensors")
    mapped = map_arrays(tmp_path / "x.safetensors")
    assert mapped.keys() == arrays.keys()
    assert all(np.array_equal(mapped[name], array) for name, array in arrays.items())
    with pytest.raises(ValueError, match="read-only"):
        mapped["mu"][0] = 0
