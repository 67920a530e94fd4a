"""Networks for small images: features, shortcuts and frozen statistics."""

import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.models import CifarResNet
from aureole.models._networks import hold_statistics


def test_bytes_and_floats_give_the_same_features():
    network = CifarResNet(8).eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    found = network(images)
    assert found.shape == (2, 64)
    assert network.n_out == 64
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
