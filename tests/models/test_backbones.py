"""Backbones for small images, heads and views."""

import pytest
import torch
from safetensors.torch import save_file

from aureole.distributions import VonMisesFisher
from aureole.errors import InvalidInputError
from aureole.models import (
    CifarResNet,
    Ensemble,
    KappaFromNorm,
    KappaFromPrototypes,
    MirroredViews,
    PosteriorEncoder,
    ResNet18,
    hold_statistics,
    load_classifier,
)
from aureole.models._views import pool


@pytest.mark.parametrize(("network", "features"), [(CifarResNet(8), 64), (ResNet18(), 512)])
def test_bytes_and_floats_give_the_same_features(network, features):
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    network.eval()
    found = network(images)
    assert found.shape == (2, features)
    assert network.n_out == features
    torch.testing.assert_close(found, network(images.float() / 255))


@pytest.mark.parametrize("depth", [0, 2, 19, 21])
def test_depths_that_do_not_exist_are_refused(depth):
    with pytest.raises(InvalidInputError, match=f"not {depth}"):
        CifarResNet(depth)


def test_option_a_shortcuts_halve_the_image_and_pad_the_channels():
    block = CifarResNet(8).layer2[0].eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 16, 8, 8)
    found = block(x)
    torch.testing.assert_close(found[:, 8:24], x[..., ::2, ::2])
    assert found[:, :8].abs().max() == 0
    assert found[:, 24:].abs().max() == 0


def classifier_file(tmp_path, network, classes=10, **changes):
    weights = {k: v.clone() for k, v in network.state_dict().items() if "tracked" not in k}
    weights |= {"linear.weight": torch.randn(classes, 64), "linear.bias": torch.randn(classes)}
    weights |= changes
    path = tmp_path / "weights.safetensors"
    save_file({k: v for k, v in weights.items() if v is not None}, path)
    return path


def test_a_classifier_is_loaded(tmp_path):
    donor, backbone = CifarResNet(8), CifarResNet(8)
    last = load_classifier(backbone, classifier_file(tmp_path, donor))
    images = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(backbone.eval()(images), donor.eval()(images))
    assert last(backbone(images)).shape == (3, 10)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"conv1.weight": torch.zeros(3, 3)}, "conv1.weight"),
        ({"bn1.weight": None}, "bn1.weight"),
        ({"strange": torch.zeros(1)}, "strange"),
        ({"linear.bias": None}, "linear"),
        ({"linear.bias": torch.zeros(3)}, "linear"),
        ({"linear.bias": torch.zeros(())}, "linear"),
        ({"linear.weight": torch.zeros(10, 63)}, "linear.weight"),
        ({"bn1.bias": torch.full((16,), float("nan"))}, "bn1.bias holds NaN"),
        ({"bn1.bias": torch.zeros(16, dtype=torch.int64)}, "bn1.bias has .*int64"),
        ({"linear.bias": torch.full((10,), float("inf"))}, "linear.bias holds NaN or infinity"),
    ],
)
def test_weights_that_do_not_fit_are_named(tmp_path, changes, message):
    path = classifier_file(tmp_path, CifarResNet(8), **changes)
    with pytest.raises(InvalidInputError, match=message) as refused:
        load_classifier(CifarResNet(8), path)
    assert str(path) in str(refused.value)


def test_weights_that_are_no_safetensors_are_named(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"<html>not found</html>")
    with pytest.raises(InvalidInputError, match=r"weights\.safetensors cannot be read"):
        load_classifier(CifarResNet(8), path)


def test_missing_weights_are_named(tmp_path):
    with pytest.raises(InvalidInputError, match="no weights at"):
        load_classifier(CifarResNet(8), tmp_path / "none.safetensors")


def test_published_classifiers_classify(shared_data):
    from aureole_paper.cifar10 import load_cifar10

    images, labels = load_cifar10(shared_data, "test")
    backbone = CifarResNet(20)
    last = load_classifier(backbone, shared_data / "weights" / "cifar10_resnet20.safetensors")
    with torch.no_grad():
        found = last(backbone.eval()(images[:500])).argmax(-1)
    assert (found == labels[:500]).float().mean() > 0.88


def test_held_statistics_do_not_move_and_can_be_saved():
    network = CifarResNet(8)
    held = hold_statistics(CifarResNet(8))
    held.load_state_dict(network.state_dict())
    before = held.bn1.running_mean.clone()
    images = torch.rand(8, 3, 32, 32)
    as_given = held(images)
    as_given.sum().backward()
    torch.testing.assert_close(held.train()(images), as_given)
    torch.testing.assert_close(held.eval()(images), as_given)
    assert torch.equal(held.bn1.running_mean, before)
    assert held.bn1.weight.grad is not None
    network.train()(torch.rand(8, 3, 32, 32))
    assert not torch.equal(network.bn1.running_mean, before)


@pytest.mark.parametrize(
    ("device", "dtype"), [("meta", torch.float32), ("cpu", torch.float64), ("cpu", torch.float32)]
)
def test_held_statistics_stay_where_the_network_is(device, dtype):
    held = hold_statistics(CifarResNet(8).to(device, dtype))
    found = {(t.device.type, t.dtype) for t in held.state_dict().values() if t.is_floating_point()}
    assert found == {(device, dtype)}


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_a_head_starts_from_a_classifier_of_another_precision_and_place(device):
    classifier = torch.nn.Linear(7, 5, device=device, dtype=torch.float64)
    head = KappaFromNorm(7, 9).to(device)
    head.start_from(classifier)
    assert head.linear.weight.dtype == torch.float32
    assert head.linear.weight.device.type == device
    if device == "cpu":
        features = torch.randn(20, 7)
        logits = classifier(features.double())
        norms = (logits - logits.mean(1, keepdim=True)).norm(dim=1)
        torch.testing.assert_close(head(features).kappa.double(), norms, rtol=1e-4, atol=1e-5)


def test_kappa_is_the_scaled_norm():
    head = KappaFromNorm(6, 3)
    features = torch.randn(50, 6)
    head.initialise(features, kappa=30.0)
    found, embedding = head(features), head.linear(features)
    torch.testing.assert_close(found.mu, embedding / embedding.norm(dim=-1, keepdim=True))
    assert found.kappa.median().item() == pytest.approx(30.0, rel=1e-5)
    torch.testing.assert_close(
        found.kappa / found.kappa[0], embedding.norm(dim=-1) / embedding[0].norm()
    )


@pytest.mark.parametrize("dim", [4, 10, 16])
def test_a_head_starts_from_the_classifiers_logits(dim):
    classifier, head = torch.nn.Linear(6, 10), KappaFromNorm(6, dim)
    head.start_from(classifier)
    features = torch.randn(5, 6)
    logits = classifier(features)
    logits = logits - logits.mean(-1, keepdim=True)
    found = head.linear(features)
    if dim >= 10:
        torch.testing.assert_close(found @ found.T, logits @ logits.T, rtol=1e-4, atol=1e-5)
    else:
        assert bool((found.norm(dim=-1) <= logits.norm(dim=-1) + 1e-5).all())


def test_variances_of_two_doubts_add():
    head = KappaFromPrototypes(6, 16, n_prototypes=10)
    features = torch.randn(40, 6)
    head.initialise(features, kappa=20.0)
    shares = torch.softmax(head.votes(features) / 4.0, -1)
    mean = shares @ torch.nn.functional.normalize(head.prototypes, dim=-1)
    r = mean.norm(dim=-1)
    by_norm = KappaFromNorm.forward(head, features).kappa
    expected = 1 / (1 / by_norm + (1 - r**2) / (r * (16 - r**2)))
    torch.testing.assert_close(head(features).kappa, expected)


def test_votes_for_one_prototype_leave_the_norms_kappa():
    head = KappaFromPrototypes(6, 16, n_prototypes=3)
    with torch.no_grad():
        head.votes.weight.zero_()
        head.votes.bias.copy_(torch.tensor([0.0, 400.0, 0.0]))
    features = torch.randn(8, 6, requires_grad=True)
    found = head(features)
    torch.testing.assert_close(found.kappa, KappaFromNorm.forward(head, features).kappa)
    found.kappa.sum().backward()
    assert bool(features.grad.isfinite().all())


def test_a_prototype_heads_gradient():
    head = KappaFromPrototypes(3, 4, n_prototypes=6).double()
    features = torch.randn(3, 3, dtype=torch.float64)

    def kappa(scale, weight):
        head.log_scale.data, head.log_weight.data = scale.detach(), weight.detach()
        seen = torch.func.functional_call(
            head, {"log_scale": scale, "log_weight": weight}, features
        )
        return seen.kappa

    start = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (0.3, -0.2)]
    with pytest.MonkeyPatch.context() as patch:  # the head works in float32; check it in float64
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        assert torch.autograd.gradcheck(kappa, start)


def test_an_encoder_trains_its_head_faster_and_both_parts_at_once():
    encoder = PosteriorEncoder(torch.nn.Linear(4, 6), KappaFromNorm(6, 3), head_rate=3.0)
    rates = [(len(group["params"]), group["lr"]) for group in encoder.parameter_groups(0.01)]
    assert rates == [(2, 0.01), (3, pytest.approx(0.03))]
    encoder.backbone.requires_grad_(False)
    assert len(list(encoder.parameter_groups(0.01))) == 1
    encoder.enter("joint")
    with pytest.raises(InvalidInputError, match="jointly"):
        encoder.enter("mu")


def test_views_that_agree_keep_kappa_and_views_that_do_not_lose_it():
    q = VonMisesFisher(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), 5.0)
    same = pool([q, q])
    torch.testing.assert_close(same.kappa, q.kappa)
    torch.testing.assert_close(same.mu, q.mu)
    other = VonMisesFisher(q.mu.flip(0), 5.0)
    torch.testing.assert_close(pool([q, other]).kappa, torch.full((2,), 5.0 / 2**0.5))


def test_one_view_stays_as_it_is():
    only = VonMisesFisher(torch.eye(3)[0], 5.0)
    assert pool([only]) is only
    with pytest.raises(InvalidInputError):
        pool([])


def test_mirrored_views_see_an_image_and_its_mirror_image_alike():
    encoder = PosteriorEncoder(CifarResNet(8), KappaFromNorm(64, 3)).eval()
    views = MirroredViews(encoder)
    images = torch.rand(4, 3, 32, 32)
    one, two = views(images), views(images.flip(-1))
    torch.testing.assert_close(one.kappa, two.kappa)
    assert not torch.allclose(one.kappa, encoder(images).kappa)


def test_an_ensemble_turns_its_members_to_the_first():
    head, features = KappaFromNorm(6, 3), torch.randn(200, 6)
    twin = KappaFromNorm(6, 3)
    turn = torch.linalg.qr(torch.randn(3, 3))[0]
    with torch.no_grad():
        twin.linear.weight.copy_(turn @ head.linear.weight)
        twin.linear.bias.copy_(turn @ head.linear.bias)
    pooled, single = Ensemble([head, twin], features)(features), head(features)
    torch.testing.assert_close(pooled.mu, single.mu, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pooled.kappa, single.kappa)
