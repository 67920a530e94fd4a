"""The parts of the service on their own: order of certainty, maps, batches, buckets, names of pictures."""

import asyncio
import math
import threading
import time

import numpy as np
import pytest
import torch

from aureole.data import write_picture
from aureole.errors import InvalidInputError
from aureole.serve import Pictures
from aureole.serve._batching import Batcher
from aureole.serve._encoding import decode_picture
from aureole.serve._faults import Fault
from aureole.serve._gallery import Certainty
from aureole.serve._limits import Buckets, allowed
from aureole.serve._map import azimuthal_map
from aureole.serve._page import read_static
from aureole.serve._pictures import find_picture


def test_an_empty_gallery_has_empty_pages():
    empty = Certainty([], np.zeros(0, np.float32), [])
    assert empty.page("ambiguous", 0, 10) == ([], 0)
    assert (empty.rank(3.0), empty.quantiles(), empty.sample(5)) == (0.0, [], [])


def test_ties_and_labels_that_are_no_text():
    kappa = np.array([2, 1, 2, 1, math.inf], np.float32)
    found = Certainty(list("abcde"), kappa, [1, 2, 1, 1, 2])
    assert found.page("ambiguous", 0, 9)[0] == list("bdace")
    assert found.page("certain", 1, 2)[0] == ["c", "a"]
    assert found.page("ambiguous", 0, 9, label="2") == (["b", "e"], 2)
    assert found.classes == [(1, 3), (2, 2)]
    assert found.rank(2.0) == 0.4
    assert found.rank(math.inf) == 0.8
    assert found.sample(100) == list("bdace")
    assert len(found.sample(3)) == 3


@pytest.mark.parametrize(
    ("labels", "asked"),
    [
        ([True, False, True], {"true": "ac", "false": "b", "True": "ac", "False": "b", "1": ""}),
        ([3.0, 0.5, 3.0], {"3": "ac", "3.0": "ac", "0.5": "b", ".5": "b", "nan": "", "three": ""}),
        ([1e-7, 1e21, 2.0], {"1e-7": "a", "1e-07": "a", "1e+21": "b", "2": "c", "-": ""}),
        ([3, 2**60 + 1, 2**60], {"3": "a", str(2**60 + 1): "b", str(2**60): "c", "3.0": "a"}),
        (["3.0", "True", "null"], {"3.0": "a", "3": "", "True": "b", "true": "", "null": "c"}),
    ],
)
def test_labels_are_found_as_a_browser_or_python_writes_them(labels, asked):
    found = Certainty(list("abc"), np.arange(3, dtype=np.float32), labels)
    for label, ids in asked.items():
        assert found.page("ambiguous", 0, 9, label=label) == (list(ids), len(ids)), label


def test_maps_keep_angles_and_do_not_mind_turning():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(50, 6))
    mu /= np.linalg.norm(mu, axis=-1, keepdims=True)
    mu[1], mu[2] = mu[0], -mu[0]  # the middle and the other end
    flat = azimuthal_map(mu[0], mu)
    angle = np.arccos(np.clip(mu @ mu[0], -1, 1))
    np.testing.assert_allclose(np.linalg.norm(flat, axis=-1), angle, atol=1e-7)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    turned = azimuthal_map(mu[0] @ turn, mu @ turn)
    near = slice(3, None)  # the end opposite has no direction
    np.testing.assert_allclose(np.abs(turned[near]), np.abs(flat[near]), atol=1e-6)
    # in the plane of its first axes a map is the plane itself
    circle = np.stack([np.cos(np.arange(5.0)), np.sin(np.arange(5.0)), np.zeros(5)], -1)
    place = azimuthal_map(np.array([0.0, 0.0, 1.0]), circle)
    gaps = np.linalg.norm(place[1:] - place[:-1], axis=-1)
    np.testing.assert_allclose(gaps, math.pi * math.sin(0.5), atol=1e-6)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("n", [1, 2])
def test_maps_of_few_points(n, dims):
    mu = np.eye(2)[:n]
    flat = azimuthal_map(np.array([1.0, 0.0]), mu, dims)
    assert flat.shape == (n, dims)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=-1), [0, math.pi / 2][:n], atol=1e-7)


def collect(batcher, items):
    async def work():
        return await asyncio.gather(
            *(batcher.submit(item) for item in items), return_exceptions=True
        )

    return asyncio.run(work())


def test_batches_hold_what_came_together_and_keep_the_order():
    sizes = []

    def work(items):
        sizes.append(len(items))
        time.sleep(0.02)
        return [item * 10 for item in items]

    batcher = Batcher(work, name="test", largest=8, wait=0.01)
    assert collect(batcher, range(30)) == [10 * i for i in range(30)]
    assert max(sizes) == 8
    assert sum(sizes) == 30
    assert len(sizes) <= 6
    batcher.close()
    with pytest.raises(Fault, match="stopping"):
        asyncio.run(batcher.submit(1))


def test_a_failure_is_its_own_or_the_batches_and_the_next_works():
    def work(items):
        if "all" in items:
            raise RuntimeError("all")
        return [ValueError("one") if item == "one" else item for item in items]

    batcher = Batcher(work, name="test")
    found = collect(batcher, ["a", "one", "b"])
    assert found[::2] == ["a", "b"]
    assert isinstance(found[1], ValueError)
    assert all(isinstance(e, RuntimeError) for e in collect(batcher, ["a", "all"]))
    assert collect(batcher, ["c"]) == ["c"]
    batcher.close()


def test_a_full_queue_refuses_and_leavers_are_dropped():
    began, go, seen = threading.Event(), threading.Event(), []

    def work(items):
        began.set()
        go.wait(10)
        seen.extend(items)
        return items

    batcher = Batcher(work, name="test", largest=1, wait=0, room=2)

    async def run():
        first = asyncio.create_task(batcher.submit("first"))
        await asyncio.to_thread(began.wait, 10)
        second = asyncio.create_task(batcher.submit("second"))
        third = asyncio.create_task(batcher.submit("third"))
        await asyncio.sleep(0.01)
        with pytest.raises(Fault) as caught:
            await batcher.submit("fourth")
        assert (caught.value.status, caught.value.retry_after) == (503, 1)
        second.cancel()
        await asyncio.sleep(0.01)
        go.set()
        assert await first == "first"
        assert await third == "third"

    asyncio.run(run())
    batcher.close()
    assert seen == ["first", "third"]


def test_buckets_forget_the_oldest_clients_and_never_fill_beyond_the_burst():
    buckets = Buckets(rate=1.0, burst=3)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [0, 0, 0, 1.0]
    assert [buckets.take("a", 1000.0) for _ in range(4)] == [0, 0, 0, 1.0]
    for client in range(20_000):
        buckets.take(str(client), 1000.0)
    assert len(buckets._held) == 10_000
    assert Buckets(0.0, 1).take("a") == 0


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer wrong", b"Basic !!!", b"Basic c2VjcmV0a2V5", b"Digest secretkey",
     b"secretkey", b"Bearer secretkey2", b"Bearer \xff\xfe", b"Basic \xff"],
)  # fmt: skip
def test_what_is_no_key(header):
    assert not allowed(header, "secretkey")
    assert allowed(b"bearer secretkey", "secretkey")
    assert allowed(None, None)


def test_only_pictures_inside_the_folder_are_found(tmp_path):
    inside, outside = tmp_path / "in", tmp_path / "out"
    picture = torch.zeros(3, 4, 4, dtype=torch.uint8)
    for place in (inside / "a.png", inside / "deep" / "b.jpg", outside / "secret.png"):
        write_picture(picture, place)
    (inside / "text.txt").write_text("secret")
    (inside / "folder.png").mkdir()
    (inside / "link.png").symlink_to(outside / "secret.png")
    (inside / "loop.png").symlink_to(inside / "loop.png")
    (inside / "same.png").symlink_to(inside / "a.png")
    root = inside.resolve()
    found = {
        name: find_picture(root, name) is not None
        for name in (
            "a", "a.png", "deep/b", "same", "b", "link", "loop", "folder", "folder.png", "text.txt", "text",
            "../out/secret", "../out/secret.png", "..", ".", "", "/", "//a", "deep/../a", "a\0", "a.png\0.txt",
            str(outside / "secret.png"), "x" * 5000, "\\..\\a", "a/", "deep", "\ud800",
        )
    }  # fmt: skip
    assert [name for name, there in found.items() if there] == ["a", "a.png", "deep/b", "same"]


def test_thumbnails_are_kept_within_their_memory(tmp_path):
    rng = torch.Generator().manual_seed(0)
    for i in range(8):
        noise = torch.randint(0, 256, (3, 64, 64), dtype=torch.uint8, generator=rng)
        write_picture(noise, tmp_path / f"{i}.png")
    pictures = Pictures(tmp_path, memory=10_000)
    for i in [*range(8), 0, 7]:
        path, tag = pictures.tag(str(i), 64)
        assert pictures.thumbnail(path, tag, 64)[:2] == b"\xff\xd8"
        assert pictures._used == sum(map(len, pictures._kept.values()))
        assert pictures._used <= 10_000
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(InvalidInputError, match="can't be read"):
        pictures.thumbnail(*pictures.tag("bad", 64), 64)
    with pytest.raises(InvalidInputError, match="no folder"):
        Pictures(tmp_path / "none")


def test_what_is_no_base64():
    for text in ("a", "a b=", "data:image/png;base64,", "é"):
        with pytest.raises(InvalidInputError, match="base64"):
            decode_picture(text + "*")


def test_static_files_are_those_of_known_types(tmp_path):
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "assets" / "a.js").write_text("1")
    (tmp_path / "assets" / "a.py").write_text("1")
    assert set(read_static(tmp_path)) == {"index.html", "assets/a.js"}
