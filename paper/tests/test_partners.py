"""Partners by soft labels, against drawing a class and then an item."""

import pytest
import torch

from aureole.data import label_rates
from aureole.errors import InvalidInputError
from aureole_paper.partners import disjoint_pairs, partner_chances


def test_chances_are_those_of_drawing_a_class_and_then_an_item():
    query = torch.tensor([[0.7, 0.3, 0.0]], dtype=torch.float64)
    gallery = torch.tensor(
        [[0.9, 0.1, 0.0], [0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64
    )
    rng = torch.Generator().manual_seed(0)
    seen = torch.zeros(4)
    for label in torch.multinomial(query[0], 4_000, replacement=True, generator=rng).tolist():
        seen[torch.multinomial(gallery[:, label], 1, generator=rng)] += 1
    chances = partner_chances(query, gallery)
    torch.testing.assert_close(seen.double() / 4_000, chances[0], atol=0.03, rtol=0)
    assert chances.sum().item() == pytest.approx(1, abs=1e-12)


def test_a_class_that_no_item_has_is_refused():
    with pytest.raises(InvalidInputError, match="class 1"):
        partner_chances(torch.tensor([[0.5, 0.5]]), torch.tensor([[1.0, 0.0]]))
    assert partner_chances(torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0]])).item() == 1


def test_no_item_is_in_two_pairs_and_partners_follow_the_rates():
    rng = torch.Generator().manual_seed(0)
    soft = torch.distributions.Dirichlet(torch.full((400, 4), 0.1)).sample()
    rate = label_rates(soft, soft.mean(0))
    pairs = disjoint_pairs(rate, 150, generator=rng)
    assert pairs.shape == (150, 2)
    assert len(pairs.unique()) == 300
    expected = (rate / rate.sum(1, keepdim=True) * rate).sum(1).mean()
    assert rate[pairs[:, 0], pairs[:, 1]].mean() > 0.8 * expected
    assert rate[pairs[:, 0], pairs[:, 1]].min() > 0


def test_items_without_a_partner_left_are_passed_over():
    same = torch.block_diag(torch.ones(5, 5), torch.ones(1, 1))
    pairs = disjoint_pairs(same, 10, generator=torch.Generator().manual_seed(0))
    assert len(pairs) == 2
    assert int(pairs.max()) < 5
    assert disjoint_pairs(torch.zeros(0, 0), 3).shape == (0, 2)
    assert disjoint_pairs(same, 0).shape == (0, 2)
