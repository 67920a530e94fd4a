"""The head for classes."""

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.evaluation import nearest_label_matches, spearman
from aureole.sphere import mean_resultant_length
from aureole_paper import class_head as module
from aureole_paper.class_head import ClassHead, ClassHeadSetting, fit_class_head, shortened
from aureole_paper.uncertainty_baselines import Probe, ProbeSetting
from paper.tests.test_uncertainty_baselines import classes

SETTING = ClassHeadSetting(
    dim=4,
    kappa_pos=8.0,
    probe=ProbeSetting(hidden=16, steps=200, batch=64, lr=5e-3),
    held_out=0.3,
    steps=60,
    items=64,
)


def _head(weight=1.0):
    features = torch.randn(30, 6)
    head = ClassHead(Probe(features, 3, ProbeSetting(hidden=5)).eval(), 4, weight=weight)
    head.seen.initialise(head.probe.embed(features), kappa=10.0)
    return head.requires_grad_(False), features


@pytest.mark.parametrize("weight", [0.0, 0.35, 1.0])
def test_the_mean_resultant_length_is_that_of_the_mixture(weight):
    head, features = _head(weight)
    found, seen = head(features), head.seen(head.probe.embed(features))
    votes = head.probe(features).softmax(-1).double()
    expected = mean_resultant_length(seen.kappa.double(), 4) * votes.norm(dim=1) ** weight
    assert torch.allclose(mean_resultant_length(found.kappa.double(), 4), expected, atol=1e-6)
    assert torch.equal(found.mu, seen.mu)


def test_an_even_vote_leaves_the_least_and_a_sure_one_what_is_seen():
    head, features = _head()
    head.probe.last.weight.zero_()
    head.probe.last.bias.copy_(torch.tensor([50.0, 0.0, 0.0]))
    seen = head.seen(head.probe.embed(features)).kappa
    assert torch.allclose(head(features).kappa, seen, rtol=1e-4)
    head.probe.last.bias.zero_()
    even = mean_resultant_length(head(features).kappa.double(), 4)
    ratio = even / mean_resultant_length(seen.double(), 4)
    assert torch.allclose(ratio, torch.full_like(ratio, 3**-0.5), atol=1e-5)


def test_it_knows_what_is_blurred_and_finds_the_class():
    features, labels, _ = classes()
    queries, truth, blur = classes(seed=1)
    found = fit_class_head(features, labels, SETTING)(queries)
    assert spearman(found.kappa, blur) < -0.3
    assert nearest_label_matches(found.mu, truth).double().mean() > 0.75
    again = fit_class_head(features, labels, SETTING)(queries)
    assert torch.equal(found.kappa, again.kappa)


@pytest.mark.filterwarnings("ignore:the posteriors carry negative information")
def test_rows_of_one_source_stay_on_one_side(monkeypatch):

    features, labels, _ = classes(300)
    marked = torch.cat([features, features])
    seen = []
    original = module.fit_probe

    def watch(rows, *others, **options):
        seen.append(rows)
        return original(rows, *others, **options)

    monkeypatch.setattr(module, "fit_probe", watch)
    sources = torch.arange(300).repeat(2)
    fit_class_head(marked, labels.repeat(2), shortened(SETTING, 2), sources=sources)
    first, second = seen[0][: len(seen[0]) // 2], seen[0][len(seen[0]) // 2 :]
    assert len(seen[0]) == 2 * 210
    assert torch.equal(first, second)


def test_classes_need_as_many_dimensions():
    probe = Probe(torch.randn(9, 4), 5, ProbeSetting(hidden=3))
    with pytest.raises(InvalidInputError, match="5 classes"):
        ClassHead(probe, 4)
