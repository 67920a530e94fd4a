"""Adaptive retrieval: the measures against plain loops, a short run on real questions, and its report."""

from dataclasses import replace

import numpy as np
import pytest

from aureole.records import read_record
from aureole_paper.adaptive_retrieval import SETTINGS, _gap_choice, _softmax
from aureole_paper.adaptive_scores import Judged, auroc, bm25_scores, conditional
from aureole_paper.catalogue import find_experiment
from aureole_paper.report import read_report
from paper.tests.conftest import anchors, checked_page, reproduce


def unit(rng, count, dim=8):
    vectors = rng.standard_normal((count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def judged():
    rng = np.random.default_rng(0)
    matches = [rng.choice(60, rng.integers(1, 4), replace=False).tolist() for _ in range(40)]
    return Judged(unit(rng, 40), unit(rng, 60), matches), matches


def test_pooled_measures_are_those_of_a_loop(judged):
    x, matches = judged
    pairs = sorted(
        ((x.cosines[i, j], j in matches[i]) for i in range(40) for j in range(60)), reverse=True
    )
    right = np.cumsum([label for _, label in pairs])
    total = sum(map(len, matches))
    hits = [right[k] / (k + 1) for k in range(len(pairs)) if pairs[k][1]]
    assert x.average_precision(x.cosines) == pytest.approx(sum(hits) / total)
    f1 = 2 * right / (np.arange(1, len(pairs) + 1) + total)
    cut = x.best_cut(x.cosines)
    assert cut == pairs[int(np.argmax(f1))][0]
    assert x.at(x.cosines, cut)["f1"] == pytest.approx(f1.max())


def test_a_safe_cut_is_the_highest_that_conformal_risk_control_allows(judged):
    x, matches = judged

    def risk(cut):
        missed = [np.mean([x.cosines[i, j] < cut for j in m]) for i, m in enumerate(matches)]
        return (sum(missed) + 1) / (len(matches) + 1)

    cut = x.safe_cut(x.cosines)
    assert risk(cut) <= 0.1
    higher = x.own(x.cosines)[x.own(x.cosines) > cut].min()
    assert risk(float(higher)) > 0.1
    held = x.coverage(x.cosines, cut)
    assert held["held"] >= 0.9
    assert held["size"] == pytest.approx((x.cosines >= cut).sum() / 40)
    parts = conditional(lambda y: y.cosines, x, x)
    fifths = [share for name, share in parts.items() if name.startswith("fifth")]
    assert np.mean(fifths) == pytest.approx(held["held"])


def test_ranks_gaps_and_softmax(judged):
    x, _ = judged
    assert (np.take_along_axis(x.ranks, np.argsort(-x.cosines, axis=1), 1) == np.arange(60)).all()
    chosen = _gap_choice(x)
    for i in (0, 7):
        order = np.sort(x.cosines[i])[::-1]
        assert chosen[i].sum() == 1 + np.argmax(order[:-1] - order[1:])
    share = np.exp(20 * _softmax(20.0)(x))
    np.testing.assert_allclose(share.sum(1), 1, rtol=1e-4)


def test_words_that_nobody_uses_score_nothing():
    scores = bm25_scores(["the cat sat", *["dogs run"] * 12], ["a cat", "zebra", ""])
    assert scores[0].argmax() == 0
    assert (scores[1:] == 0).all()
    assert auroc(np.array([0.0, 1.0]), np.array([1.0, 2.0])) == 0.875


def test_a_short_run_on_real_questions_and_its_page(shared_data, tmp_path, monkeypatch):
    small = replace(SETTINGS[0], size=120)
    monkeypatch.setattr(
        "aureole_paper.catalogue.find_experiment",
        lambda name: replace(find_experiment(name), settings=(small,)),
    )
    monkeypatch.setenv("AUREOLE_CACHE", str(tmp_path / "cache"))
    command = ["adaptive-retrieval", "--seeds", "1"]
    (found,) = reproduce(*command, data=shared_data, out=tmp_path / "records").values()
    rules = found["rules"]
    assert rules["ours"]["pooled_ap"] > rules["cosine"]["pooled_ap"] > 0.2
    assert 0.8 < rules["CSLS"]["at 90 %"]["held"] <= 1
    assert found["abstention"]["BoolQ"]["highest cosine"]["auroc"] > 0.9
    record = read_record(tmp_path / "records" / "insuranceqa-minilm" / "seed-0.json")
    assert record.name == "adaptive/insuranceqa-minilm"
    names = ["rules", "thresholds", "labels", "conditional", "abstention"]
    assert anchors(tmp_path / "records") == names
    text = " ".join(read_report(tmp_path / "records").results)
    assert "InsuranceQA, MiniLM. MatchCalibrator without a query map has pooled AP" in text
    checked_page(tmp_path / "records", tmp_path)
