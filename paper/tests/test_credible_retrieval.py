"""Credible retrieval: caps, chances and the index against other ways to the same, and a short run on real images."""

import json
from dataclasses import replace

import pytest
import torch

from aureole.caps import ConformalMass
from aureole.distributions import VonMisesFisher, log_expected_positivity
from aureole.records import read_record
from aureole.sphere import normalize
from aureole_paper import cifar10h
from aureole_paper.catalogue import find_experiment
from aureole_paper.credible_retrieval import (
    CredibleRetrievalSetting,
    Law,
    Search,
    check_index,
    take,
)
from aureole_paper.runs import run
from paper.tests.conftest import reproduce


def images(count, rng):
    """Posteriors of images of ten classes with labels and votes; some votes are torn."""
    labels = torch.arange(count) % 10
    centres = normalize(torch.randn(10, 16, generator=torch.Generator().manual_seed(9)))
    mu = normalize(centres[labels] + 0.2 * torch.randn(count, 16, generator=rng))
    votes = torch.nn.functional.one_hot(labels, 10).float()
    torn = torch.rand(count, 1, generator=rng) < 0.3
    votes = torch.where(torn, 0.6 * votes + 0.4 * votes.roll(1, -1), votes)
    return VonMisesFisher(mu, 10 + 20 * torch.rand(count, generator=rng)), labels, votes


@pytest.fixture
def search():
    rng = torch.Generator().manual_seed(0)
    (query, own, votes), (gallery, others, theirs) = images(30, rng), images(80, rng)
    return Search(query, gallery, (own, others), (votes, theirs), 16.0)


def test_items_are_held_by_the_caps_they_lie_in(search):
    held = search.held()
    for mass in (0.5, 0.9):
        least = search.query.predictive_cosine(mass, 16.0, search.kappa_other)
        inside = search.query.mu @ search.gallery.mu.T >= least.unsqueeze(1)
        assert torch.equal(held <= mass, inside)


def test_positivity_is_that_of_pairs_of_posteriors(search):
    for q, g in ((0, 3), (7, 70)):
        query, item = take(search.query, torch.tensor([q])), take(search.gallery, torch.tensor([g]))
        expected = log_expected_positivity(query, item, 16.0)
        torch.testing.assert_close(search.log_positivity[q, g].float(), expected[0], atol=1e-4, rtol=1e-4)  # fmt: skip


def test_partners_are_of_the_label_or_drawn_by_votes(search):
    by_label, by_votes = search.chances("label"), search.chances("votes")
    assert torch.equal(by_label > 0, search.relevant)
    torch.testing.assert_close(by_label[search.relevant], torch.tensor(1 / 8).double().expand(240))
    assert bool((by_votes[~search.relevant] > 0).any())
    torch.testing.assert_close(by_votes.sum(1), torch.ones(30).double())


def test_the_index_returns_the_same_sets_and_a_lost_item_is_counted(search):
    rng = torch.Generator().manual_seed(1)
    query, partner = (images(60, rng)[0] for _ in range(2))
    conformal = ConformalMass.fit(query, partner, 16.0, kappa_other=search.kappa_other)
    held = search.held()
    found = check_index(search, held, conformal, checked=5, ask_back=0.2)
    assert found["searches"] == 40
    assert found["members"] > 150
    assert found["differing"] == 0
    assert found["asked_back"] == 1
    held[0, int(held[0].argmin())] = 1.0  # in every cap of the index, in no set
    assert check_index(search, held, conformal, checked=5, ask_back=0.2)["differing"] == 8


def test_a_refitted_law_has_the_likeliest_kappa_pos():
    rng = torch.Generator().manual_seed(2)
    mu = normalize(torch.randn(600, 8, generator=rng))
    latent = VonMisesFisher(VonMisesFisher(mu, 60.0).sample(generator=rng), 100.0)
    near = VonMisesFisher(latent.sample(generator=rng), 60.0)
    partner = VonMisesFisher(near.sample(generator=rng), 60.0)
    query = VonMisesFisher(mu, 60.0)
    law = Law.refit(query, partner, (4.0, 100.0))
    assert law.kappa_pos == 100.0
    assert law.log_likelihood(query, partner) > Law.fit(query, partner, 4.0).log_likelihood(query, partner)  # fmt: skip


def test_a_short_run_on_real_images_is_recorded_once(shared_data, tmp_path, monkeypatch):
    small = replace(
        CredibleRetrievalSetting(),
        encoder=cifar10h.Cifar10HSetting("closed-form", items=64, mirrored=False),
        kappa_pos_choices=(64.0,),
        checked=5,
        images=600,
    )
    monkeypatch.setattr(
        "aureole_paper.catalogue.find_experiment",
        lambda name: replace(find_experiment(name), settings=(small,)),
    )
    command = ["credible-retrieval", "--folds", "1", "--max-batches", "4"]
    (found,) = reproduce(*command, data=shared_data, out=tmp_path).values()
    assert found["index"]["differing"] == 0
    assert found["queries"] == found["gallery"] == 300
    for partners in ("votes", "label"):
        conformal = found["coverage"][partners]["conformal"]
        assert conformal["0.9"]["all"] == pytest.approx(0.9, abs=0.08)
        for method in ("model", "calibrated", "refitted", "conformal"):
            sizes = [found["size"][partners][method][mass]["all"] for mass in ("0.5", "0.9")]
            assert 0 < sizes[0] < sizes[1] <= 1
    ranking, gain = found["ranking"], found["gain"]["positivity"]
    assert 0.5 < ranking["cosine"]["map"]["all"] < 1
    difference = ranking["positivity"]["map"]["all"] - ranking["cosine"]["map"]["all"]
    assert gain["map"]["all"] == pytest.approx(difference, abs=1e-9)
    abstention = found["abstention"]
    assert abstention["recall_at_1"] < abstention["kept"] <= abstention["kept_best"]
    path = tmp_path / "credible-retrieval" / "seed-0.json"
    record = read_record(path)
    assert record.name == "retrieval/credible-retrieval"
    assert str(shared_data) not in path.read_text()
    assert not list(tmp_path.glob("*/*.safetensors"))
    again = run(small.shortened(4), 0, tmp_path, command="again", data_dir=shared_data)
    assert again.command == record.command  # read, not repeated


def test_settings_are_shortened_but_not_lengthened():
    setting = CredibleRetrievalSetting()
    assert setting.shortened(4).encoder.steps == 4
    assert setting.shortened(4000) == setting
    assert json.loads(json.dumps(setting.as_json())) == setting.as_json()
    assert [s.name for s in find_experiment("credible-retrieval").settings] == [setting.name]
