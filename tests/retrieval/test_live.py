"""Live galleries: switches that readers follow, updates that go to one version, and hostile files."""

import json
import os
import threading

import pytest
import torch

import aureole as au
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.retrieval import (
    ConformalMass,
    CredibleIndex,
    GalleryMatcher,
    MatchCalibrator,
    Origin,
    SwitchedGalleryError,
    check_release,
    release,
    rollback,
)
from aureole.retrieval._live import lock
from benchmarks.rollouts import killed, releasers
from tests.retrieval.conftest import posteriors

N, DIM = 300, 8
IDS = [f"item {i}" for i in range(N)]


def gallery(where, seed, *, dim=DIM, ids=IDS, weights=None, payload=None, kappa=None):
    rows = posteriors(len(ids), dim, seed)
    if kappa is not None:
        rows = au.VonMisesFisher(rows.mu, kappa)
    with CredibleIndex.create(where, rows, ids, payload) as made:
        made.origin = Origin(20.0, weights)
    return str(where)


@pytest.fixture
def shop(tmp_path):
    """(The live file, the addresses of two galleries whose kappas agree), the first of which is released."""
    kappa = torch.linspace(5, 60, N)
    old = gallery(tmp_path / "old.lance", 0, weights="a", kappa=kappa)
    new = gallery(tmp_path / "new.lance", 1, weights="b", kappa=kappa.square())
    live = str(tmp_path / "shop.live")
    assert release(old, live).switched
    return live, old, new


def answer(index):
    return [
        (hits.ids, hits.cosine.tolist(), hits.kappa.tolist())
        for hits in index.search(posteriors(6, index.schema.dim, 9), 0.9)
    ]


def answers(*addresses):
    found = []
    for address in addresses:
        with CredibleIndex.open(address) as index:
            found.append(answer(index))
    return found


def test_an_open_index_follows_a_release_and_a_rollback(shop):
    live, old, new = shop
    first, second = answers(old, new)
    assert first != second
    index, fixed = CredibleIndex.open(live), CredibleIndex.open(live, follow=False)
    assert answer(index) == first
    version = index.version()
    done = release(new, live)
    assert done.switched
    assert not done.failed
    assert answer(index) == second
    assert answer(fixed) == first
    assert index.version() != version
    assert index.live.number == 2
    assert (index.live.current.gallery, index.live.previous.gallery) == ("new.lance", "old.lance")
    assert rollback(live).number == 3
    assert answer(index) == first
    assert rollback(live).current.gallery == "new.lance"
    assert answer(index) == second
    assert index.count() == N
    assert index.check() == []
    index.close()


@pytest.mark.parametrize("engines", [("lance", "faiss"), ("faiss", "shards")])
def test_versions_may_have_different_engines_and_dimensions(tmp_path, engines):
    old = gallery(tmp_path / f"a.{engines[0]}", 0)
    new = gallery(tmp_path / f"b.{engines[1]}", 1, dim=12)
    live = tmp_path / "shop.live"
    release(old, live)
    with CredibleIndex.open(live) as index:
        assert index.schema.dim == DIM
        shards = index.shards
        assert release(new, live, force=True).switched
        assert index.schema.dim == 12
        assert (shards, index.shards is not None) == (None, engines[1] == "shards")
        assert answer(index) == answers(new)[0]


def test_a_scan_stays_with_one_version(shop, tmp_path):
    live, old, new = shop
    with CredibleIndex.open(old) as index:
        index.copy(tmp_path / "old.shards").close()
    release(tmp_path / "old.shards", live)
    index = CredibleIndex.open(live)
    scan = index.scan()
    blocks = [next(scan)]
    release(new, live)
    assert index.live.current.gallery == "new.lance"
    blocks += scan
    assert sum(len(ids) for ids, _, _ in blocks) == N
    assert max(kappa.max() for _, kappa, _ in blocks) == 60  # the new one has 3,600


def test_a_search_stays_with_one_version(shop, monkeypatch):
    live, old, new = shop
    first, second = answers(old, new)
    index = CredibleIndex.open(live)
    release(new, live)
    rollback(live)
    assert answer(index) == first
    original = type(index).origin
    switched = []

    def switch(self):  # in the middle of a search, which reads kappa_pos there
        if not switched:
            switched.append(rollback(live))
        return original.fget(self)

    monkeypatch.setattr(CredibleIndex, "origin", property(switch, original.fset))
    assert answer(index) == first
    assert switched
    assert answer(index) == second


def test_updates_go_to_the_current_version(shop):
    live, old, new = shop
    one, other = CredibleIndex.open(live), CredibleIndex.open(live)
    assert one.upsert(posteriors(2, DIM, 3), ["item 0", "fresh"]) == 1
    assert other.count() == N + 1
    release(new, live, force=True)
    assert one.delete(["item 5"]) == 1
    counts = []
    for address in (old, new):
        with CredibleIndex.open(address) as index:
            counts.append(index.count())
    assert counts == [N + 1, N - 1]


def test_rows_of_another_model_are_not_stored(shop):
    live, _, new = shop
    index, fixed = CredibleIndex.open(live), CredibleIndex.open(live, follow=False)
    release(new, live)
    with pytest.raises(SwitchedGalleryError, match="another model"):
        index.upsert(posteriors(1, DIM, 3), ["fresh"])
    for update in (
        lambda: fixed.append(posteriors(1, DIM, 3), ["fresh"]),
        lambda: fixed.delete(["item 1"]),
    ):
        with pytest.raises(SwitchedGalleryError, match="open it again"):
            update()
    assert CredibleIndex.open(live).upsert(posteriors(1, DIM, 3), ["fresh"]) == 0


def test_a_switch_waits_for_an_update(shop, tmp_path):
    live, _, new = shop
    switched = threading.Event()
    with lock(tmp_path / "shop.live"):
        thread = threading.Thread(target=lambda: (release(new, live), switched.set()))
        thread.start()
        assert not switched.wait(1.0)
    thread.join(10)
    assert switched.is_set()


def test_a_calibrator_needs_an_index_that_stays(shop):
    index = CredibleIndex.open(shop[0])
    assert index.follows
    with pytest.raises(InvalidInputError, match="follow=False"):
        GalleryMatcher(MatchCalibrator(), index)


def outcomes(found):
    return {check.name: check.outcome for check in found}


def test_the_first_release_checks_the_gallery_alone(tmp_path):
    new = gallery(tmp_path / "new.lance", 0)
    done = release(new, tmp_path / "sub" / "shop.live")
    assert outcomes(done.checks) == {"rows valid": "passed", "model": "passed"}
    assert done.live.previous is None
    with pytest.raises(InvalidInputError, match="no previous version"):
        rollback(tmp_path / "sub" / "shop.live")


def test_what_refuses_a_release_and_what_warns(tmp_path):
    payload = {"shop": ["a"] * N}
    kappa = torch.linspace(5, 60, N)
    old = gallery(tmp_path / "old.lance", 0, payload=payload, weights="a", kappa=kappa)
    with CredibleIndex.open(old) as index:
        index.conformal = ConformalMass([i / 100 for i in range(1, 100)], 20.0, 30.0)
    live = tmp_path / "shop.live"
    release(old, live)
    new = gallery(tmp_path / "new.faiss", 1, ids=IDS[:-30], kappa=torch.full((N - 30,), 7.0))
    with CredibleIndex.open(new) as index:
        index.build("ivf", lists=30, probes=1)
    done = release(new, live)
    assert not done.switched
    assert outcomes(done.checks) == {
        "rows valid": "passed",
        "columns": "failed",
        "ids": "failed",
        "kappa": "failed",
        "recall": "failed",
        "calibration": "failed",
        "model": "warning",
    }
    values = {check.name: check.values for check in done.checks}
    assert values["ids"]["missing"] == 0.1
    assert values["ids"]["examples"][0] == "item 270"
    assert values["recall"]["recall"] < 0.98
    with CredibleIndex.open(live) as index:
        assert index.live.number == 1
        assert release(new, live, force=True).switched
        assert index.count() == N - 30


def test_warnings_do_not_refuse(shop, tmp_path):
    live, _, _ = shop
    new = gallery(tmp_path / "other.lance", 4, ids=[*IDS[1:], "more"], kappa=torch.rand(N) * 9)
    done = release(new, live)
    assert done.switched
    found = outcomes(done.checks)
    assert (found["ids"], found["kappa"], found["model"]) == ("warning",) * 3
    (kappa,) = [check for check in done.checks if check.name == "kappa"]
    assert abs(kappa.values["rank_correlation"]) < 0.3
    assert kappa.values["compared"] == N - 1


def test_a_damaged_gallery_is_refused(shop, tmp_path):
    live, _, _ = shop
    new = gallery(tmp_path / "bad.faiss", 1)
    with CredibleIndex.open(new) as index:
        store = index._store
        store.problems = lambda: ["rows.safetensors has another SHA-256."]
        found = check_release(index, CredibleIndex.open(live))
    assert outcomes(found) == {"rows valid": "failed"}


def test_a_sample_holds_the_same_ids_of_both_versions(shop, tmp_path, monkeypatch):
    monkeypatch.setattr("aureole.retrieval._release.SAMPLE", 60)
    live, _, new = shop
    done = release(new, live)
    values = {check.name: check.values for check in done.checks}
    assert 30 < values["ids"]["compared"] < 100
    assert values["ids"]["missing"] == values["ids"]["added"] == 0
    assert values["kappa"]["rank_correlation"] == pytest.approx(1.0)


def test_the_named_head_must_have_made_the_gallery(shop, tmp_path):
    live, _, new = shop
    (tmp_path / "head").mkdir()
    with pytest.raises(InvalidInputError, match="holds no saved head"):
        release(new, live, model={"head": tmp_path / "head"})
    (tmp_path / "head" / "weights.safetensors").write_bytes(b"other")
    done = release(new, live, model={"head": tmp_path / "head"})
    assert outcomes(done.checks)["model"] == "failed"
    with pytest.raises(InvalidInputError, match="encoder, head and calibrator"):
        release(new, live, model={"brain": "x"})


def test_a_current_version_that_was_deleted_can_be_replaced(shop, tmp_path):
    live, old, new = shop
    os.rename(old, tmp_path / "gone.lance")
    with pytest.raises(InvalidInputError, match=r"current version of .*shop.live does not open"):
        CredibleIndex.open(live)
    done = release(new, live)
    assert done.switched
    assert done.checks[0].name == "current version"
    with pytest.raises(InvalidInputError):
        rollback(live)


def test_addresses_are_checked(shop, tmp_path):
    live, _, new = shop
    with pytest.raises(InvalidInputError, match="already"):
        release(shop[1], live)
    with pytest.raises(InvalidInputError, match="not a gallery"):
        release(live, tmp_path / "b.live")
    with pytest.raises(InvalidInputError, match=r"ends in .live"):
        release(new, tmp_path / "b.lance")
    with pytest.raises(MissingInputError, match="index release"):
        CredibleIndex.open(tmp_path / "missing.live")
    with pytest.raises(InvalidInputError, match="cannot be created there"):
        CredibleIndex.create(tmp_path / "b.live", posteriors(2, 4), ["a", "b"])
    with pytest.raises(InvalidInputError, match="cannot be created there"):
        CredibleIndex.open(new).copy(tmp_path / "b.live")
    assert not (tmp_path / "b.live").exists()


VALID = {"format": "aureole-live-1", "number": 1, "current": {"gallery": "old.lance"}}
HOSTILE = [
    "",
    "[]",
    "{",
    "[" * 100_000,
    '"' + "x" * 100_000 + '"',
    json.dumps(VALID | {"format": "aureole-live-2"}),
    json.dumps(VALID | {"number": "1"}),
    json.dumps(VALID | {"number": 10**30}),
    json.dumps(VALID | {"number": True}),
    json.dumps(VALID | {"current": None}),
    json.dumps(VALID | {"current": "old.lance"}),
    json.dumps(VALID | {"current": {"gallery": ""}}),
    json.dumps(VALID | {"current": {"gallery": 7}}),
    json.dumps(VALID | {"current": {"gallery": "a\0.lance"}}),
    json.dumps(VALID | {"current": {"gallery": "x" * 5000 + ".lance"}}),
    json.dumps(VALID | {"current": {"gallery": "../old.lance"}}),
    json.dumps(VALID | {"current": {"gallery": "shop.live"}}),
    json.dumps(VALID | {"current": {"gallery": "shop.live/"}}),
    json.dumps(VALID | {"current": {"gallery": "faiss://"}}),
    json.dumps(VALID | {"current": {"gallery": "postgresql://me:secret@host/shop#t"}}),
    json.dumps(VALID | {"current": {"gallery": "postgresql://host/shop?password=secret#t"}}),
    json.dumps(VALID | {"current": {"gallery": "old.lance", "head": ["x"]}}),
    json.dumps(VALID | {"current": {"gallery": "old.lance", "head": "../../etc"}}),
    json.dumps(VALID | {"previous": {"gallery": "a.live"}}),
    json.dumps(VALID | {"previous": [1]}),
]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_refused(shop, tmp_path, text):
    path = tmp_path / "shop.live"
    index = CredibleIndex.open(path)
    path.write_text(text)
    for use in (index.count, lambda: CredibleIndex.open(path), lambda: rollback(path)):
        with pytest.raises(DamagedGalleryError, match=r"shop\.live") as caught:
            use()
        assert "secret" not in str(caught.value)
    path.write_text(json.dumps(VALID))
    assert index.count() == N


def test_a_folder_or_binary_file_is_refused(tmp_path):
    (tmp_path / "a.live").mkdir()
    (tmp_path / "b.live").write_bytes(b"\xff\xfe\0")
    for name in ("a.live", "b.live"):
        with pytest.raises(DamagedGalleryError, match=name):
            CredibleIndex.open(tmp_path / name)


def test_a_password_is_not_written(shop, tmp_path):
    from aureole.retrieval._live_files import Live, LiveVersion, write_live

    version = LiveVersion("postgresql://me:secret@host/shop#items")
    with pytest.raises(InvalidInputError, match="PGPASSWORD") as caught:
        write_live(tmp_path / "b.live", Live(1, version))
    assert "secret" not in str(caught.value)
    assert not (tmp_path / "b.live").exists()


@pytest.mark.long
def test_killed_releases_never_mix_two_versions(tmp_path):
    with releasers() as process:
        found = killed(process, tmp_path, "lance", 3)
    assert (found["killed"], found["mixed"], found["leftovers"]) == (3, 0, 0)
    assert found["searches_first"]
    assert found["searches_second"]
