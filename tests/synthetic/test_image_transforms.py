"""Blur against scipy's, and crops against slicing and resizing."""

import pytest
import torch
from scipy.ndimage import gaussian_filter
from torch.nn.functional import interpolate

from aureole.errors import InvalidInputError
from aureole.synthetic import blur_pictures, deteriorate
from aureole.synthetic._image_transforms import augment, blur_batch, crop_batch


def test_blur_equals_scipys_away_from_the_edge():
    images = torch.rand(3, 2, 64, 48, dtype=torch.float64)
    widths = torch.tensor([0.5, 1.5, 3.0])
    found = blur_batch(images, widths)
    for image, width, blurred in zip(images, widths, found, strict=True):
        wanted = gaussian_filter(image.numpy(), (0, float(width), float(width)), truncate=8)
        inside = slice(20, -20)
        assert torch.allclose(
            blurred[:, inside, inside], torch.from_numpy(wanted)[:, inside, inside], atol=1e-3
        )


@pytest.mark.parametrize("width", [-0.1, float("nan"), float("inf")])
def test_hostile_widths_are_named(width):
    with pytest.raises(InvalidInputError, match=rf"widths\[1\] is {width:g}"):
        blur_pictures(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([1.0, width]))


def test_crops_equal_cutting_out_and_resizing():
    images = torch.rand(40, 3, 32, 24, dtype=torch.float64)
    boxes, wanted = [], []
    for image in images:
        width, height = (int(torch.randint(1, n + 1, ())) for n in (24, 32))
        left, top = (int(torch.randint(0, n + 1, ())) for n in (24 - width, 32 - height))
        boxes.append([left / 24, top / 32, width / 24, height / 32])
        window = image[:, top : top + height, left : left + width]
        wanted.append(interpolate(window[None], (32, 24), mode="bilinear", align_corners=False))
    found = crop_batch(images, torch.tensor(boxes))
    assert torch.allclose(found, torch.cat(wanted), atol=1e-5)


def test_the_whole_image_comes_back_exactly():
    images = torch.rand(5, 3, 32, 32)
    assert torch.equal(crop_batch(images, torch.tensor([0.0, 0, 1, 1]).expand(5, 4)), images)


def test_windows_over_the_edge_see_the_reflection():
    image = torch.arange(8.0).expand(1, 1, 8, 8)
    found = crop_batch(image, torch.tensor([[-0.25, 0.0, 1.0, 1.0]]))
    assert found[0, 0, 0].tolist() == [1, 0, 0, 1, 2, 3, 4, 5]


def test_deterioration_keeps_images_of_size_one():
    images = torch.randint(0, 256, (50, 3, 32, 32), dtype=torch.uint8)
    rng = torch.Generator().manual_seed(1)
    assert torch.equal(deteriorate(images, torch.ones(50), rng), images)
    assert torch.equal(deteriorate(images, torch.ones(50)), images)


def test_deterioration_shows_a_window_of_its_size_anywhere():
    ramp = torch.arange(0, 256, 8, dtype=torch.uint8)
    images = torch.stack(torch.broadcast_tensors(ramp, ramp[:, None]))[None].expand(4000, 2, 32, 32)
    sizes = torch.linspace(0.25, 0.75, 4000)
    found = deteriorate(images, sizes, torch.Generator().manual_seed(1)).float() / 256
    x, y = found[:, 0, 0], found[:, 1, :, 0]
    for axis in (x, y):
        # the ends are read half a pixel inside of the window, and values are rounded
        assert torch.allclose(axis[:, -1] - axis[:, 0], sizes - 1 / 32, atol=1 / 256)
        place = axis[:, 0] / (1 - sizes)
        deciles = torch.quantile(place, torch.linspace(0.1, 0.9, 9))
        assert torch.allclose(deciles, torch.linspace(0.1, 0.9, 9), atol=0.03)
    assert abs(float(torch.corrcoef(torch.stack([x[:, 0], y[:, 0]]))[0, 1])) < 0.3


def test_deterioration_without_a_generator_is_central():
    images = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    window = images[:, :, 8:24, 8:24].float()
    wanted = interpolate(window, (32, 32), mode="bilinear", align_corners=False).round().byte()
    assert torch.equal(deteriorate(images, torch.tensor([0.5])), wanted)


@pytest.mark.parametrize("size", [0.0, -0.5, 1.01, float("nan")])
def test_sizes_are_fractions(size):
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    with pytest.raises(InvalidInputError, match=rf"sizes\[1\] is {size:g}"):
        deteriorate(images, torch.tensor([0.5, size]))


def test_crops_hide_part_of_some_images():
    images = torch.randint(0, 256, (400, 3, 32, 32), dtype=torch.uint8)
    rng = torch.Generator().manual_seed(0)
    whole = augment(images, 0.0, rng) * 255
    same = (whole.round() == images).flatten(1).all(1)
    mirrored = (whole.flip(-1).round() == images).flatten(1).all(1)
    assert bool((same | mirrored).all())
    assert 150 < same.sum() < 250
    cropped = augment(images, 0.5, rng) * 255
    changed = ((cropped - images).abs() > 1).flatten(1).any(1)
    changed &= ((cropped.flip(-1) - images).abs() > 1).flatten(1).any(1)
    assert 150 < changed.sum() < 250
