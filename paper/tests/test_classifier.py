"""Classifiers as files, and what is wrong with them."""

import pytest
import torch
from safetensors.torch import save_file

from aureole.errors import InvalidInputError
from aureole.models import (
    CifarResNet,
)
from aureole_paper.classifier import load_classifier


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
    with pytest.raises(InvalidInputError, match="weights not found"):
        load_classifier(CifarResNet(8), tmp_path / "none.safetensors")


def test_published_classifiers_classify(shared_data):
    from aureole_paper.cifar import load_cifar10

    images, labels = load_cifar10(shared_data, "test")
    backbone = CifarResNet(20)
    last = load_classifier(backbone, shared_data / "weights" / "cifar10_resnet20.safetensors")
    with torch.no_grad():
        found = last(backbone.eval()(images[:500])).argmax(-1)
    assert (found == labels[:500]).float().mean() > 0.88
