"""Heads on the vectors of a finished encoder."""

import numpy as np
import pytest
import torch

import aureole as au
from aureole.errors import InvalidInputError
from aureole.evaluation import recall_at_1, spearman
from aureole.training.frozen import FrozenHead, NotFittedError


@pytest.fixture(scope="module")
def data():
    """Noisy views of 600 things, four of each; the first coordinate shows how noisy a view is."""
    rng = torch.Generator().manual_seed(0)
    groups = torch.arange(600).repeat(4)
    blur = 0.1 + 0.9 * torch.rand(len(groups), generator=rng)
    things = torch.randn(600, 11, generator=rng)[groups]
    views = things + blur[:, None] * torch.randn(len(groups), 11, generator=rng)
    vectors = 5 + 3 * torch.cat([blur[:, None], views], 1)
    return vectors, groups, blur


def small(**changes):
    return FrozenHead(**({"dim": 8, "steps": 120, "items": 256, "width": 64} | changes))


@pytest.fixture(scope="module")
def head(data):
    vectors, groups, _ = data
    return small().fit(vectors, groups)


def test_kappa_knows_the_noise_and_mu_the_thing(head, data):
    vectors, groups, blur = data
    found = head.predict(vectors)
    assert isinstance(found, au.VonMisesFisher)
    assert found.mu.shape == (2400, 8)
    assert spearman(found.kappa, -blur) > 0.85
    sharp = blur < 0.4
    assert recall_at_1(found.mu[sharp], groups[sharp]) > recall_at_1(found.mu, groups) + 0.1


def test_scores_are_information_and_the_profile_is_flat(head, data):
    vectors, groups, _ = data
    score = head.score(vectors, groups)
    assert score > 2.0
    assert head.information_ == max(point["information"] for point in head.fit_.curve)
    untrained = small(steps=1, lr=1e-9).fit(vectors, groups)
    assert score > untrained.score(vectors, groups) + 0.5
    profile = head.profile(vectors, groups)
    assert profile[16.0] == pytest.approx(score)
    assert max(profile.values()) < score + 1.0


@pytest.mark.parametrize("kind", ["numpy", "half", "memory-mapped"])
def test_arrays_and_files_do_as_tensors_do(head, data, kind, tmp_path):
    vectors, _, _ = data
    array = vectors.numpy()
    if kind == "half":
        array = array.astype(np.float16)
    if kind == "memory-mapped":
        np.save(tmp_path / "vectors.npy", array)
        array = np.load(tmp_path / "vectors.npy", mmap_mode="r")
    found, expected = head.predict(array), head.predict(vectors)
    tolerance = 0.05 if kind == "half" else 1e-6
    torch.testing.assert_close(found.kappa, expected.kappa, rtol=tolerance, atol=tolerance)


def test_a_seed_decides_everything_and_strings_are_groups(data):
    vectors, groups, _ = data
    names = np.array([f"thing {g:04d}" for g in groups.tolist()])
    one, two = (small(steps=5).fit(vectors, g).predict(vectors) for g in (groups, names))
    assert torch.equal(one.kappa, two.kappa)
    other = small(steps=5, seed=1).fit(vectors, groups).predict(vectors)
    assert not torch.equal(one.kappa, other.kappa)


def test_a_stopped_fit_goes_on(data, tmp_path):
    vectors, groups, _ = data
    whole = small(steps=10).fit(vectors, groups).predict(vectors)

    def stop(step, total, phase, loss, state):
        if step >= 4:
            raise KeyboardInterrupt

    path = tmp_path / "head.safetensors"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("aureole.training.fit.time.monotonic", iter(range(10**6)).__next__)
        with pytest.raises(KeyboardInterrupt):
            small(steps=10).fit(vectors, groups, checkpoint=path, observer=stop)
    assert path.exists()
    resumed = small(steps=10).fit(vectors, groups, checkpoint=path).predict(vectors)
    torch.testing.assert_close(whole.kappa, resumed.kappa)


def test_parameters_have_scikit_learns_manners():
    head = FrozenHead(dim=4, steps=7)
    again = FrozenHead(**head.get_params())
    assert again.get_params() == head.get_params()
    assert head.set_params(dim=5) is head
    assert head.dim == 5
    with pytest.raises(InvalidInputError, match="no parameter 'dims'"):
        head.set_params(dims=5)


def test_what_cannot_be_fitted_is_named(head, data):
    vectors, groups, _ = data
    with pytest.raises(NotFittedError, match="call fit"):
        FrozenHead().predict(vectors)
    with pytest.raises(InvalidInputError, match="as many groups"):
        small().fit(vectors, groups[:-1])
    with pytest.raises(InvalidInputError, match=r"\[n, d\]"):
        small().fit(vectors[0], groups)
    with pytest.raises(InvalidInputError, match="between 2 and the vectors' 12"):
        small(dim=13).fit(vectors, groups)
    with pytest.raises(InvalidInputError, match="of 12 dimensions, not 11"):
        head.predict(vectors[:, 1:])
    broken = vectors.clone()
    broken[7, 3] = torch.nan
    with pytest.raises(InvalidInputError, match=r"vectors\[7\]"):
        head.predict(broken)
