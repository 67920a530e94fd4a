"""Blur against scipy's."""

import pytest
import torch
from scipy.ndimage import gaussian_filter

from aureole.data import blur_pictures
from aureole.data._blur import blur_batch
from aureole.errors import InvalidInputError


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


def test_flat_pictures_stay_flat_and_sharp_ones_stay_sharp():
    flat = torch.full((1, 3, 9, 7), 200, dtype=torch.uint8)
    assert torch.equal(blur_pictures(flat, torch.tensor([2.5])), flat)
    noise = torch.randint(0, 256, (2, 3, 9, 7), dtype=torch.uint8)
    assert torch.equal(blur_pictures(noise, torch.zeros(2)), noise)


@pytest.mark.parametrize("width", [-0.1, float("nan"), float("inf")])
def test_hostile_widths_are_named(width):
    with pytest.raises(InvalidInputError, match=rf"widths\[1\] is {width:g}"):
        blur_pictures(torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.tensor([1.0, width]))
