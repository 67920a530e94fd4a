"""MobileNetV2: the published network, and files that are not it."""

import numpy as np
import pytest
import torch
from torch import nn

from aureole.errors import InvalidInputError
from aureole_paper.cifar import load_cifar10
from aureole_paper.mobilenet import MobileNetV2, load_mobilenet

FILE = "weights/mobilenetv2_imagenet_bottleneck_fp16.npz"


def random_weights(seed=0):
    """Weights of a random network with statistics that matter, as arrays."""
    torch.manual_seed(seed)
    network = MobileNetV2(32)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    state = network.eval().state_dict()
    arrays = {k: v.numpy() for k, v in state.items() if not k.endswith("num_batches_tracked")}
    return network, arrays


def test_a_loaded_network_is_the_same_function_with_its_batch_norms_folded(tmp_path):
    network, arrays = random_weights()
    np.savez(tmp_path / "w.npz", **arrays)
    loaded = load_mobilenet(tmp_path / "w.npz", 32)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in loaded.modules())
    assert not any(p.requires_grad for p in loaded.parameters())
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        expected, found = network(images), loaded(images)
    assert found.std() > 0
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_it_has_the_published_number_of_weights():
    count = sum(p.numel() for p in MobileNetV2().parameters())
    assert count == 2_223_872  # 3,504,872 with the classifier of 1,281,000


def test_images_of_any_size_are_resized_and_bytes_are_as_fractions():
    network = MobileNetV2(48).eval()
    images = torch.randint(0, 256, (2, 3, 20, 33), dtype=torch.uint8)
    with torch.no_grad():
        assert torch.equal(network(images), network(images.float() / 255))
    with pytest.raises(InvalidInputError, match="32"):
        MobileNetV2(16)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {k: a[k] for k in a if k != "features.0.0.weight"}, "features.0.0.weight"),
        (lambda a: a | {"more": np.zeros(2)}, "more"),
        (lambda a: a | {"features.0.1.bias": np.zeros(31, np.float32)}, "shape"),
        (lambda a: a | {"features.0.1.bias": np.full(32, np.nan, np.float32)}, "NaN"),
        (lambda a: a | {"features.0.1.bias": np.array([{}] * 32)}, "is not an"),
        (lambda a: a | {"features.0.1.bias": np.array(["x"] * 32)}, "is not an"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, change, message):
    np.savez(tmp_path / "w.npz", **change(random_weights()[1]))
    with pytest.raises(InvalidInputError, match=message):
        load_mobilenet(tmp_path / "w.npz")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"\x80\x04pickle"])
def test_files_that_are_no_archive_are_refused(tmp_path, content):
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(InvalidInputError, match="is not an"):
        load_mobilenet(tmp_path / "w.npz")
    with pytest.raises(InvalidInputError, match="no weights"):
        load_mobilenet(tmp_path / "none.npz")


def test_neighbours_by_the_published_weights_share_a_class(shared_data):
    images, labels = load_cifar10(shared_data, "test")
    network = load_mobilenet(shared_data / FILE)
    with torch.no_grad():
        features = torch.cat([network(chunk) for chunk in images[:1000].split(50)])
    unit = features / features.norm(dim=1, keepdim=True)
    nearest = (unit @ unit.T).fill_diagonal_(-1).argmax(1)
    share = (labels[:1000][nearest] == labels[:1000]).double().mean()
    assert share > 0.6  # 0.1 by chance
