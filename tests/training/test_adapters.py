"""The adapter to pytorch-metric-learning: loop oracles, and the library's own NT-Xent."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.training import MetricLearningLoss
from aureole.training._metric_learning import posterior_from_norm

TEMPERATURE = 0.2
LOSSES = [
    au.InfoNCE(temperature=TEMPERATURE),
    au.ClosedFormInfoNCE(20.0),
    au.ELK(temperature=1.0),
]
UNEVEN = torch.tensor([0, 1, 0, 2, 1, 0, 3, 3, 0])  # classes of 4, 2, 1 and 2


def named(loss):
    return type(loss).__name__


def raw(n, dim=5, scale=6.0):
    return (scale * torch.randn(n, dim, dtype=torch.float64)).requires_grad_()


def single(loss, embeddings, references, i, p, negatives):
    """The loss of one hand-made pair with its negatives, by the loss's own call."""
    anchor = posterior_from_norm(embeddings[i : i + 1])
    positive = posterior_from_norm(references[p : p + 1])
    return loss(anchor, positive, posterior_from_norm(references[negatives]))


def assert_same(found, expected, inputs):
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    grads = [torch.autograd.grad(y, inputs, retain_graph=True) for y in (found, expected)]
    for ours, theirs in zip(*grads, strict=True):
        assert torch.isfinite(ours).all()
        assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_pairs_from_labels_match_a_loop(loss):
    x, labels = raw(8), torch.tensor([0, 1, 2, 3, 2, 0, 1, 3])
    terms = []
    for i in range(8):
        (p,) = [j for j in range(8) if labels[j] == labels[i] and j != i]
        terms.append(single(loss, x, x, i, p, [j for j in range(8) if labels[j] != labels[i]]))
    assert_same(MetricLearningLoss(loss)(x, labels), torch.stack(terms).mean(), (x,))


def test_the_partner_is_drawn_uniformly_and_only_among_the_others_of_the_label():
    x = raw(len(UNEVEN))
    loss = au.InfoNCE(temperature=0.2, reduction="none")
    pairs = {}  # anchor -> the value of each partner
    for i in range(len(x)):
        negatives = torch.nonzero(UNEVEN[i] != UNEVEN).squeeze(1)
        partners = [j for j in range(len(x)) if UNEVEN[j] == UNEVEN[i] and j != i]
        if partners:
            pairs[i] = [single(loss, x, x, i, p, negatives).item() for p in partners]
    adapter = MetricLearningLoss(loss, generator=torch.Generator().manual_seed(1))
    found = torch.stack([adapter(x.detach(), UNEVEN) for _ in range(3000)])
    assert found.shape[1] == len(pairs) == 8  # item 3 is alone
    for column, values in zip(found.T, pairs.values(), strict=True):
        hits = torch.isclose(column.unsqueeze(1), torch.tensor(values, dtype=torch.float64))
        assert (hits.sum(1) == 1).all()
        assert hits.double().mean(0).sub(1 / len(values)).abs().max() < 0.04
    again = MetricLearningLoss(loss, generator=torch.Generator().manual_seed(1))
    assert torch.equal(again(x.detach(), UNEVEN), found[0])


@pytest.mark.parametrize("loss", LOSSES, ids=named)
def test_listed_pairs_match_a_loop_also_against_references(loss):
    x, references = raw(4), raw(6)
    indices = ([0, 0, 2, 3], [1, 4, 5, 0], [0, 0, 2, 2, 2, 1], [2, 3, 0, 1, 3, 5])
    terms = []
    for a, p in zip(*indices[:2], strict=True):
        negatives = [n for b, n in zip(*indices[2:], strict=True) if b == a]
        # anchor 3 has no negatives: it is worth 0 and counts
        terms.append(single(loss, x, references, a, p, negatives) if negatives else 0 * x.sum())
    tuple_of_tensors = tuple(torch.tensor(each) for each in indices)
    found = MetricLearningLoss(loss)(x, None, tuple_of_tensors, references)
    assert_same(found, torch.stack(terms).mean(), (x, references))


def test_triplets_are_split_and_repeated_pairs_count_again():
    x = raw(5)
    loss = au.ClosedFormInfoNCE(10.0)
    a, p, n = ([0, 0, 0, 2], [1, 1, 3, 4], [2, 4, 2, 0])
    terms = [single(loss, x, x, i, j, {0: [2, 4, 2], 2: [0]}[i]) for i, j in zip(a, p, strict=True)]
    found = MetricLearningLoss(loss)(x, None, [torch.tensor(each) for each in (a, p, n)])
    assert_same(found, torch.stack(terms).mean(), (x,))


def test_references_that_are_the_embeddings_leave_an_anchor_out_of_its_own_pairs():
    x, labels = raw(6), torch.arange(3).repeat(2)
    adapter = MetricLearningLoss(au.InfoNCE(temperature=0.2))
    assert torch.equal(adapter(x, labels, None, x, labels), adapter(x, labels))
    copied = adapter(x, labels, None, x[:3], labels[:3])  # another set: equal rows are partners
    terms = [
        single(adapter.loss, x, x, i, i % 3, [j for j in range(3) if j != i % 3]) for i in range(6)
    ]
    assert torch.allclose(copied, torch.stack(terms).mean())


@pytest.mark.parametrize(
    ("labels", "indices"),
    [
        (torch.arange(4), None),
        (torch.zeros(4, dtype=torch.long), None),
        (None, tuple(torch.zeros(0, dtype=torch.long) for _ in range(4))),
        (None, tuple(torch.zeros(0, dtype=torch.long) for _ in range(3))),
    ],
    ids=["no positives", "no negatives", "no pairs", "no triplets"],
)
def test_without_pairs_or_negatives_the_loss_is_zero_with_a_graph(labels, indices):
    x = raw(4)
    direction, spread = (nn.Linear(5, size, dtype=torch.float64) for size in (5, 1))

    def head(e):
        kappa = spread(e).exp().squeeze(-1)
        return au.VonMisesFisher(sphere.normalize(direction(e)), kappa)

    adapter = MetricLearningLoss(au.losses.HedgedInstance(n_samples=4), head)
    value = adapter(x, labels, indices)
    value.backward()
    assert value == 0
    assert value.shape == ()
    assert torch.equal(x.grad, torch.zeros_like(x))
    for layer in (direction, spread):  # DistributedDataParallel wants a gradient of each
        assert torch.equal(layer.weight.grad, torch.zeros_like(layer.weight))


def test_a_point_head_gives_a_zero_that_is_not_nan():
    def point(e):
        return au.VonMisesFisher(sphere.normalize(e), torch.inf)

    assert MetricLearningLoss(au.InfoNCE(temperature=0.2), point)(raw(3), torch.arange(3)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_loss_trains_a_head_and_autocast_is_fine(dtype):
    for loss in (*LOSSES, au.MCInfoNCE(20.0, 8), au.losses.HedgedInstance(n_samples=8)):
        head = _Head(nn.Linear(5, 4))
        module = MetricLearningLoss(loss, head)
        given = torch.randn(6, 5), torch.arange(3).repeat(2)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            value = module(*given)
        value.backward()
        assert value.dtype == torch.float32
        assert len(list(module.parameters())) == 2
        assert all(torch.isfinite(p.grad).all() for p in head.parameters())


class _Head(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, embeddings):
        return posterior_from_norm(self.layers(embeddings))


def test_wrong_calls_of_the_metric_learning_loss_are_explained():
    loss = MetricLearningLoss(au.InfoNCE(temperature=0.2))
    x, labels, index = raw(4), torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1])
    zero = x.detach().clone()
    zero[2] = 0
    for call, message in (
        ((x[0], labels), r"embeddings must be .* shape \(n, dim\)"),
        ((x.detach().long(), labels), "embeddings must be a floating-point"),
        ((x, labels[:3]), r"labels must have shape \(4,\)"),
        ((x, labels.unsqueeze(1)), r"labels must have shape \(4,\)"),
        ((x,), "pass labels or indices_tuple"),
        ((x, labels, None, raw(3)), "pass ref_labels or indices_tuple"),
        ((x, labels, None, raw(3), labels), r"ref_labels must have shape \(3,\)"),
        ((x, labels, None, raw(4, dim=6), labels), r"R\^6"),
        ((zero, labels), r"vectors\[2\].*zero"),
        ((x, labels, (index, index)), "contains 2"),
        ((x, labels, (index, index, index[:1])), "lengths"),
        ((x, labels, (index, index + 3, index)), "positives .* between 0 and 3.* first 4"),
        ((x, labels, (index, index - 1, index)), "positives .* between 0 and 3.* first -1"),
        ((x, labels, (index.double(), index, index)), "integers"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            loss(*call)
    with pytest.raises(InvalidInputError, match="gather"):
        MetricLearningLoss(au.InfoNCE(temperature=0.2, gather=True))
    with pytest.raises(InvalidInputError, match="head must return a VonMisesFisher"):
        MetricLearningLoss(au.InfoNCE(temperature=0.2), sphere.normalize)(x, labels)
    with pytest.raises(InvalidInputError, match="one posterior per row"):
        MetricLearningLoss(au.InfoNCE(temperature=0.2), lambda e: posterior_from_norm(e[:2]))(
            x, labels
        )


def test_it_agrees_with_nt_xent_on_classes_of_two():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, labels = raw(16, dim=8), torch.arange(8).repeat(2)[torch.randperm(16)]
    ours = MetricLearningLoss(au.InfoNCE(temperature=TEMPERATURE))(x, labels)
    assert_same(ours, losses.NTXentLoss(TEMPERATURE)(x, labels), (x,))


def test_it_agrees_with_nt_xent_on_all_pairs_and_all_triplets():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    from pytorch_metric_learning.utils import loss_and_miner_utils as lmu

    x = raw(len(UNEVEN))
    ours, theirs = (
        MetricLearningLoss(au.InfoNCE(temperature=TEMPERATURE)),
        losses.NTXentLoss(TEMPERATURE),
    )
    assert_same(ours(x, UNEVEN, lmu.get_all_pairs_indices(UNEVEN)), theirs(x, UNEVEN), (x,))
    triplets = lmu.get_all_triplets_indices(UNEVEN)
    assert_same(ours(x, UNEVEN, triplets), theirs(x, UNEVEN, triplets), (x,))


@pytest.mark.parametrize("name", ["MultiSimilarityMiner", "BatchHardMiner", "TripletMarginMiner"])
def test_it_honours_the_miners(name):
    miners = pytest.importorskip("pytorch_metric_learning.miners")
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x, labels = raw(24), torch.randint(0, 5, (24,))
    indices = getattr(miners, name)()(x, labels)
    assert all(len(each) > 1 for each in indices)
    ours, theirs = (
        MetricLearningLoss(au.InfoNCE(temperature=TEMPERATURE)),
        losses.NTXentLoss(TEMPERATURE),
    )
    assert_same(ours(x, labels, indices), theirs(x, labels, indices), (x,))
    references, others = raw(10), torch.randint(0, 5, (10,))
    indices = getattr(miners, name)()(x, labels, references, others)
    given = (x, labels, indices, references, others)
    assert_same(ours(*given), theirs(*given), (x, references))


def test_one_pair_with_one_negative_counts_here_and_is_zero_in_nt_xent():
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    x = raw(3)
    indices = tuple(torch.tensor([i]) for i in (0, 1, 0, 2))
    ours = MetricLearningLoss(au.InfoNCE(temperature=TEMPERATURE))
    assert torch.allclose(ours(x, None, indices), single(ours.loss, x, x, 0, 1, [2]))
    assert losses.NTXentLoss(TEMPERATURE)(x, None, indices) == 0


@pytest.mark.parametrize("symmetric", [True, False])
def test_it_works_inside_the_self_supervised_wrapper(symmetric):
    losses = pytest.importorskip("pytorch_metric_learning.losses")

    class Wrapper(losses.SelfSupervisedLoss):
        @classmethod
        def check_loss_support(cls, loss_name):
            pass

    first, second = raw(6), raw(6)
    ours = Wrapper(MetricLearningLoss(au.InfoNCE(temperature=TEMPERATURE)), symmetric=symmetric)
    theirs = losses.SelfSupervisedLoss(losses.NTXentLoss(TEMPERATURE), symmetric=symmetric)
    assert_same(ours(first, second), theirs(first, second), (first, second))


def test_it_works_with_a_memory_across_batches():
    losses = pytest.importorskip("pytorch_metric_learning.losses")

    class Memory(losses.CrossBatchMemory):
        @classmethod
        def check_loss_support(cls, loss_name):
            pass

    ours = Memory(MetricLearningLoss(au.InfoNCE(temperature=TEMPERATURE)), 5, memory_size=20)
    theirs = losses.CrossBatchMemory(losses.NTXentLoss(TEMPERATURE), 5, memory_size=20)
    for _ in range(4):
        x, labels = raw(8), torch.randint(0, 4, (8,))
        assert_same(ours(x, labels), theirs(x, labels), (x,))


def test_the_adapter_imports_without_the_other_library():
    code = (
        "import sys, aureole.training\n"
        "assert not {'pytorch_metric_learning', 'torchvision'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
