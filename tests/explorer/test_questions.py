"""Questions about a gallery, each against a loop over all pairs."""

import math

import numpy as np
import pytest
import torch

from aureole.caps import CredibleIndex, cap_cosine
from aureole.caps._caps import log_hit_positivity
from aureole.distributions import VonMisesFisher
from aureole.engines import Origin
from aureole.errors import DamagedGalleryError, InvalidInputError, MissingInputError
from aureole.explorer import _questions as questions, inspect_gallery
from aureole.explorer._questions import (
    load_questions,
    log_match_ratios,
    nearest_rows,
    questions_path,
    save_questions,
)

KAPPA_POS = 20.0
N, CLASSES = 120, 3


def clouds(n=N, dim=6, seed=0, spread=0.35):
    """(Directions around one centre per class, kappas, labels)."""
    rng = torch.Generator().manual_seed(seed)
    centres = torch.nn.functional.normalize(torch.randn(CLASSES, dim, generator=rng), dim=1)
    label = torch.arange(n) % CLASSES
    mu = centres[label] + spread * torch.randn(n, dim, generator=rng)
    kappa = 5 + 60 * torch.rand(n, generator=rng)
    return torch.nn.functional.normalize(mu, dim=1), kappa, label


def gallery(mu, kappa, label=None, where="faiss://", kappa_pos=KAPPA_POS, **columns):
    ids = [f"item-{i:03d}" for i in range(len(mu))]
    if label is not None:
        columns["label"] = [f"class {code}" for code in label.tolist()]
    index = CredibleIndex.create(where, VonMisesFisher(mu, kappa), ids, columns)
    index.origin = Origin(kappa_pos=kappa_pos)
    return index


@pytest.fixture(scope="module")
def asked():
    mu, kappa, label = clouds()
    wrong = [4, 40, 77]
    label[wrong] = (label[wrong] + 1) % CLASSES
    index = gallery(mu, kappa, label)
    return index, inspect_gallery(index, label_column="label"), wrong


def pairs_of(index):
    """(Ids, cosines of all pairs, kappas, labels) in the order of kappa, by a loop."""
    rows = sorted(
        (kappa, name, mu, payload["label"])
        for names, posterior, columns in index.posteriors(columns=["label"])
        for name, kappa, mu, payload in zip(
            names,
            posterior.kappa.tolist(),
            posterior.mu.double().tolist(),
            [{"label": each} for each in columns["label"]],
            strict=True,
        )
    )
    mu = np.array([row[2] for row in rows])
    mu /= np.linalg.norm(mu, axis=1)[:, None]
    return [row[1] for row in rows], mu @ mu.T, [row[0] for row in rows], [row[3] for row in rows]


def test_shares_are_those_of_a_loop(asked):
    index, found, _ = asked
    ids, cosine, kappa, labels = pairs_of(index)
    assert found.ids == ids
    typical = index.schema.typical_kappa
    for i in range(N):
        query = VonMisesFisher(torch.eye(6)[0], torch.tensor(kappa[i]))
        t = cap_cosine(query, 0.95, kind="predictive", kappa_pos=KAPPA_POS, kappa_other=typical)
        others = sorted((j for j in range(N) if j != i), key=lambda j: -cosine[i, j])[:20]
        weight: dict[str, float] = {}
        for j in others:
            if cosine[i, j] < t:
                continue
            triple = (torch.tensor([float(x)]) for x in (cosine[i, j], kappa[i], kappa[j]))
            ratio = math.exp(log_hit_positivity(*triple, KAPPA_POS, 6).item())
            weight[labels[j]] = weight.get(labels[j], 0.0) + ratio
        total = sum(weight.values())
        own = weight.get(labels[i], 0.0) / total if total else math.nan
        np.testing.assert_allclose(found.labels.own[i], own, rtol=2e-4, equal_nan=True)
        most = max((w for each, w in weight.items() if each != labels[i]), default=0.0)
        a = weight.get(labels[i], 0.0)
        np.testing.assert_allclose(
            found.labels.suspicion[i], (most + 1) / (a + most + 2), rtol=2e-4
        )
        rest = {each: w / total for each, w in weight.items() if each != labels[i]}
        if rest:
            best = max(rest, key=lambda each: rest[each])
            np.testing.assert_allclose(found.labels.other_share[i], rest[best], rtol=2e-4)
            if sorted(rest.values())[-1] > 1.01 * sorted([0.0, *rest.values()])[-2]:
                assert found.labels.classes[found.labels.other[i]] == best


def test_planted_labels_are_the_most_suspicious(asked):
    _, found, wrong = asked
    total, first = found.answer("labels", 0, 6)
    assert {entry["id"] for entry in first} >= {f"item-{i:03d}" for i in wrong}
    assert total >= 3
    assert [entry["score"] for entry in first] == sorted(
        (entry["score"] for entry in first), reverse=True
    )
    _, second = found.answer("labels", 2, 4)
    assert second == first[2:]


def test_the_rows_of_a_question_are_those_of_its_whole_answer(asked):
    _, found, _ = asked
    one, two = found.confusions()[0]["codes"]
    for name, classes in (("labels", None), ("outliers", None), ("ambiguous", (one, two))):
        _, entries = found.answer(name, 0, N, classes=classes)
        assert found.rows(name, classes=classes).tolist() == sorted(e["row"] for e in entries)
    for name in ("nothing", "duplicates"):
        with pytest.raises(InvalidInputError):
            found.rows(name)


def test_confusions_are_means_of_shares(asked):
    _, found, _ = asked
    shares = found.labels
    ids = {tuple(pair): s for pair, s in zip(shares.pairs.tolist(), shares.pair_share, strict=True)}
    for code in range(CLASSES):
        rows = (found.labels.code == code) & ~np.isnan(shares.own)
        np.testing.assert_allclose(ids[code, code], shares.own[rows].mean())
        assert sum(s for (own, _), s in ids.items() if own == code) == pytest.approx(1.0)
    pairs = found.confusions()
    assert [sum(p["shares"]) for p in pairs] == sorted(sum(p["shares"]) for p in pairs)[::-1]
    one = pairs[0]["codes"]
    total, rows = found.answer("ambiguous", 0, 500, classes=tuple(one))
    assert total == pairs[0]["count"] == len(rows)
    names = {found.labels.classes[code] for code in one}
    assert all({row["label"], row["other"]} == names for row in rows)


def test_outliers_are_far_from_the_tenth_neighbour(asked):
    index, found, _ = asked
    _, cosine, _, _ = pairs_of(index)
    np.fill_diagonal(cosine, -2)
    tenth = np.arccos(np.sort(cosine, axis=1)[:, -10])
    np.testing.assert_allclose(found.angle, tenth, atol=1e-6)
    for i in (0, 50, 119):
        assert found.p_value[i] == pytest.approx(np.mean(found.angle >= found.angle[i]))
    np.testing.assert_allclose(found.columns()["outlier"], -np.log10(found.p_value))


def test_a_lone_item_is_the_outlier():
    mu, kappa, label = clouds(spread=0.1)
    centre = torch.nn.functional.normalize(mu.mean(0), dim=0)
    mu[5] = -centre
    found = inspect_gallery(gallery(mu, kappa, label))
    total, first = found.answer("outliers")
    assert first[0]["id"] == "item-005"
    assert first[0]["beyond"]
    beyond = found.summary()[-1]["count"]
    assert total == len(first) == max(20, beyond)
    assert [entry["beyond"] for entry in first] == [True] * beyond + [False] * (total - beyond)
    assert [entry["angle"] for entry in first] == sorted(found.angle, reverse=True)[:total]
    assert [each["available"] for each in found.summary()] == [False, False, True]
    with pytest.raises(InvalidInputError, match="no label column"):
        found.answer("labels")
    with pytest.raises(InvalidInputError, match="does not exist"):
        found.answer("nothing")


def test_equal_weights_without_kappa_pos():
    mu, kappa, label = clouds()
    index = gallery(mu, kappa, label, kappa_pos=None)
    found = inspect_gallery(index, label_column="label")
    _, cosine, _, labels = pairs_of(index)
    np.fill_diagonal(cosine, -2)
    for i in range(0, N, 7):
        near = np.argsort(-cosine[i])[:20]
        assert found.labels.own[i] == pytest.approx(np.mean([labels[j] == labels[i] for j in near]))


def test_tiny_and_empty_galleries():
    mu, kappa, label = clouds(3)
    for n in (1, 2, 3):
        found = inspect_gallery(gallery(mu[:n], kappa[:n], label[:n]), label_column="label")
        assert len(found) == n
        assert found.answer("outliers") == (0, [])
        assert found.answer("labels")[0] <= n
    index = gallery(mu, kappa, label)
    index.delete([f"item-{i:03d}" for i in range(3)])
    found = inspect_gallery(index, label_column="label")
    assert len(found) == 0
    assert [each["count"] for each in found.summary()][-1] == 0


def test_neighbours_are_those_of_a_loop():
    n = 700
    mu = clouds(n, dim=5)[0].numpy()
    found = nearest_rows(mu, 20)
    for i in range(0, n, n // 40):
        wide = mu.astype(np.float64)
        cosine = wide @ wide[i] / np.linalg.norm(wide, axis=1) / np.linalg.norm(wide[i])
        cosine[i] = -2
        np.testing.assert_allclose(found.cosine[i], np.sort(cosine)[::-1][:20], atol=1e-7)
        np.testing.assert_allclose(cosine[found.rows[i]], found.cosine[i], atol=1e-12)
        assert len(set(found.rows[i].tolist())) == 20


def test_a_sample_of_a_large_gallery():
    mu = clouds(500)[0].numpy()
    found = nearest_rows(mu, 5, sample=100)
    assert len(np.unique(found.rows)) <= 100
    assert (found.rows != np.arange(500)[:, None]).all()


def test_interpolated_positivities_are_close():
    mu, _, _ = clouds(1000, dim=16)
    rng = np.random.default_rng(0)
    kappa = 3 * 200 ** rng.random(1000)
    near = nearest_rows(mu.numpy(), 40)
    assert near.rows.size > questions._EXACT
    found = log_match_ratios(near, kappa, KAPPA_POS, 16)
    own = np.repeat(kappa, 40)
    flat = (torch.from_numpy(x) for x in (near.cosine.ravel(), own, kappa[near.rows].ravel()))
    exact = log_hit_positivity(*flat, KAPPA_POS, 16).numpy().reshape(found.shape)
    assert np.abs(found - exact).max() < 0.05


def test_infinite_kappas_have_answers():
    mu, kappa, label = clouds(700, dim=8)
    index = gallery(mu, torch.full_like(kappa, 1e30), label)
    found = inspect_gallery(index, label_column="label")
    assert np.isfinite(found.labels.suspicion).all()


def test_the_file_has_the_same_answers(asked, tmp_path):
    _, found, _ = asked
    path = save_questions(found, questions_path(str(tmp_path / "gallery.lance")))
    assert path.name == "gallery.lance.questions.safetensors"
    again = load_questions(path)
    assert again.version == found.version
    for name in ("labels", "ambiguous", "outliers"):
        assert again.answer(name, 0, 50) == found.answer(name, 0, 50)
    assert again.summary() == found.summary()
    assert again.confusions() == found.confusions()


def test_damaged_files_are_refused(asked, tmp_path):
    _, found, _ = asked
    path = save_questions(found, tmp_path / "questions.safetensors")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedGalleryError, match="inspect"):
        load_questions(path)
    path.write_bytes(content.replace(b"aureole-questions-2", b"aureole-questions-9"))
    with pytest.raises(DamagedGalleryError, match="format"):
        load_questions(path)
    with pytest.raises(MissingInputError, match="aureole inspect"):
        load_questions(tmp_path / "missing")
    with pytest.raises(InvalidInputError, match="not local"):
        questions_path("postgresql://host/db#table")
