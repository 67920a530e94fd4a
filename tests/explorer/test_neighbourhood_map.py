"""The map around a query and the angles of its caps."""

import math

import numpy as np
import pytest

from aureole.explorer._neighbourhood_map import azimuthal_map


def test_maps_keep_angles_and_do_not_mind_turning():
    rng = np.random.default_rng(0)
    mu = rng.normal(size=(50, 6))
    mu /= np.linalg.norm(mu, axis=-1, keepdims=True)
    mu[1], mu[2] = mu[0], -mu[0]  # the middle and the other end
    flat = azimuthal_map(mu[0], mu)
    angle = np.arccos(np.clip(mu @ mu[0], -1, 1))
    np.testing.assert_allclose(np.linalg.norm(flat, axis=-1), angle, atol=1e-7)
    turn = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    turned = azimuthal_map(mu[0] @ turn, mu @ turn)
    near = slice(3, None)  # the end opposite has no direction
    np.testing.assert_allclose(np.abs(turned[near]), np.abs(flat[near]), atol=1e-6)
    # in the plane of its first axes a map is the plane itself
    circle = np.stack([np.cos(np.arange(5.0)), np.sin(np.arange(5.0)), np.zeros(5)], -1)
    place = azimuthal_map(np.array([0.0, 0.0, 1.0]), circle)
    gaps = np.linalg.norm(place[1:] - place[:-1], axis=-1)
    np.testing.assert_allclose(gaps, math.pi * math.sin(0.5), atol=1e-6)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("n", [1, 2])
def test_maps_of_few_points(n, dims):
    mu = np.eye(2)[:n]
    flat = azimuthal_map(np.array([1.0, 0.0]), mu, dims)
    assert flat.shape == (n, dims)
    np.testing.assert_allclose(np.linalg.norm(flat, axis=-1), [0, math.pi / 2][:n], atol=1e-7)
