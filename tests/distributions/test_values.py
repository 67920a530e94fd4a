"""Posteriors as values: every operation that tensors have, on all three distributions, CPU and meta."""

import copy
import io
import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import aureole as au
from aureole import sphere
from aureole.errors import InvalidInputError
from aureole.sphere import normalize


def vmf(*batch, dim=4, dtype=torch.float32):
    return au.VonMisesFisher(
        normalize(torch.randn(*batch, dim, dtype=dtype)), 1 + 50 * torch.rand(batch, dtype=dtype)
    )


def mixture(*batch, dim=4, k=3, dtype=torch.float32):
    components = vmf(*batch, k, dim=dim, dtype=dtype)
    return au.MixtureVMF(torch.rand(*batch, k, dtype=dtype) + 0.1, components.mu, components.kappa)


def uniform(*batch, dim=4, dtype=torch.float32):
    return au.SphereUniform(dim, batch, dtype=dtype)


KINDS = pytest.mark.parametrize("make", [vmf, mixture, uniform])


def same(first, second, tolerance=0.0):
    assert type(first) is type(second)
    assert (first.shape, first.dim, first.dtype) == (second.shape, second.dim, second.dtype)
    for name, part in first._parts().items():
        assert torch.allclose(part, second._parts()[name], rtol=tolerance, atol=tolerance), name


@KINDS
def test_shape_length_and_iteration(make):
    q = make(5, 2)
    assert (len(q), q.shape, q.dtype, q.device.type) == (5, (5, 2), torch.float32, "cpu")
    items = list(q)
    assert [item.shape for item in items] == [(2,)] * 5
    same(items[3], q[3])
    assert list(make(0)) == []
    single = make()
    with pytest.raises(TypeError, match="single"):
        len(single)
    with pytest.raises(TypeError, match="single"):
        iter(single)


INDICES = [
    3, -1, slice(1, 4), slice(None, None, 2), [0, 2], torch.tensor([4, 4, 0]), np.array([1, 3]), None, ...,
    torch.tensor([True, False, True, False, True]), np.array([True] * 4 + [False]), (..., 1), (2, 1), (slice(None), 0),
    (None, 3), (torch.tensor([0, 1]), torch.tensor([1, 0])), np.int64(2), torch.zeros(5, 2, dtype=torch.bool), (),
]  # fmt: skip


@KINDS
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_indexing_is_that_of_tensors(make, device):
    q = make(5, 2)
    mark = torch.arange(10).view(5, 2)
    for index in INDICES:
        masked = getattr(index, "dtype", None) in (torch.bool, np.dtype(bool))
        if device == "meta" and masked:
            continue  # the shape depends on values that meta tensors do not have
        found = q.to(device)[index]
        assert found.shape == mark[index].shape, index
        if device == "cpu" and found.shape.numel() and make is not uniform:
            assert torch.equal(found.mu, q.mu.flatten(0, 1)[mark[index]]), index
            assert torch.equal(found.kappa, q.kappa.flatten(0, 1)[mark[index]]), index


@KINDS
@pytest.mark.parametrize(
    "index", [5, -6, (0, 0, 0), (0, 2), torch.tensor([7]), torch.ones(4, dtype=torch.bool)]
)
def test_an_index_outside_the_batch_is_an_error(make, index):
    with pytest.raises(IndexError):
        make(5, 2)[index]


@KINDS
def test_indexing_carries_gradients_and_checks(make):
    q = make(3)
    assert not make(3)[0]._validate_args or q._validate_args
    if make is uniform:
        return
    kappa = torch.ones(3, requires_grad=True)
    chosen = au.VonMisesFisher(torch.eye(3), kappa, validate_args=False)[1:]
    chosen.kappa.sum().backward()
    assert kappa.grad.tolist() == [0, 1, 1]
    assert not chosen._validate_args
    assert q[1]._validate_args
    assert not chosen.detach().kappa.requires_grad


@KINDS
def test_devices_and_dtypes(make):
    q = make(4)
    wide = q.to(torch.float64)
    assert wide.dtype == torch.float64
    if make is not uniform:
        assert bool((wide.mu.norm(dim=-1) - 1).abs().max() < 1e-12)
        wide.log_prob(
            wide.mu[..., 0, :] if make is mixture else wide.mu
        )  # on the sphere, or this is an error
    same(wide.to(torch.float32), q, 1e-6)
    same(q.cpu(), q)
    same(q.to(wide), wide)
    assert q.to("meta").device.type == "meta"
    for dtype in (torch.float16, torch.int64):
        with pytest.raises(InvalidInputError, match="float32 or float64"):
            q.to(dtype)
    if torch.cuda.is_available():
        same(q.cuda().cpu(), q)
    else:
        with pytest.raises((RuntimeError, AssertionError)):
            q.cuda()


@KINDS
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_cat_and_stack(make, device):
    a, b = make(2, 3).to(device), make(4, 3).to(device)
    both = torch.cat([a, b])
    assert (both.shape, both.device.type, type(both)) == ((6, 3), device, type(a))
    assert torch.cat((a, a), dim=-1).shape == torch.concat([a, a], 1).shape == (2, 6)
    assert torch.stack([a, a]).shape == (2, 2, 3)
    assert torch.stack([a, a], dim=-1).shape == (2, 3, 2)
    assert torch.concatenate([a, b], axis=0).shape == (6, 3)
    if device == "cpu":
        same(both[2:], b, 1e-6)
        same(torch.stack([a, a], -1)[..., 1], a, 1e-6)
    assert torch.cat([a, b.to(torch.float64)]).dtype == torch.float64


def test_cat_refuses_what_does_not_fit():
    q = vmf(2)
    with pytest.raises(InvalidInputError, match="one kind"):
        torch.cat([q, mixture(2)])
    with pytest.raises(InvalidInputError, match="one kind"):
        torch.cat([q, torch.eye(4)])
    with pytest.raises(InvalidInputError, match="cannot be joined"):
        torch.cat([q, vmf(2, dim=5)])
    with pytest.raises(InvalidInputError, match="cannot be joined"):
        torch.stack([q, vmf(3)])
    for dim in (1, -2):
        with pytest.raises(IndexError):
            torch.cat([q, q], dim)
    with pytest.raises(IndexError):
        torch.cat([vmf(), vmf()])
    with pytest.raises(TypeError):
        torch.exp(q)
    with pytest.raises(TypeError):
        torch.eye(4) + q


@KINDS
@pytest.mark.filterwarnings("ignore:lance is not fork-safe")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 1])
def test_collation(make, workers):
    q = make(6)
    data = [(q[i], i, {"q": q[i]}) for i in range(6)]
    first, labels, named = next(iter(DataLoader(data, batch_size=4, num_workers=workers)))
    same(first, q[:4], 1e-6)
    same(named["q"], q[:4], 1e-6)
    assert labels.tolist() == [0, 1, 2, 3]
    same(default_collate(list(q)), q, 1e-6)


@KINDS
@pytest.mark.parametrize("protocol", [2, 5])
def test_pickle_and_copies(make, protocol):
    q = make(3)
    data = pickle.dumps(q, protocol)
    assert b"_von_mises_fisher" not in data  # a file does not name a private module
    for again in (pickle.loads(data), copy.copy(q), copy.deepcopy(q)):  # noqa: S301
        same(again, q, 1e-6)
        assert again._validate_args == q._validate_args


def test_pickles_of_subclasses():
    own = Own(torch.eye(3), 2.0)
    again = pickle.loads(pickle.dumps(own))  # noqa: S301
    assert type(again) is type(own[0]) is Own
    assert torch.equal(again.mu, own.mu)


class Own(au.VonMisesFisher):
    pass


@KINDS
def test_safe_files(make):
    q, file = make(3), io.BytesIO()
    torch.save({"posteriors": [q, q[0]], "rest": torch.ones(2)}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    same(loaded["posteriors"][0], q, 1e-6)
    same(loaded["posteriors"][1], q[0], 1e-6)


def test_files_name_only_known_kinds():
    from aureole.distributions._values import from_state

    with pytest.raises(InvalidInputError, match="unknown kind"):
        from_state("os.system", {})


def test_arrays_and_lists():
    q = vmf(3, dtype=torch.float64)
    arrays = q.numpy()
    assert set(arrays) == {"mu", "kappa"}
    assert set(mixture(2).numpy()) == {"mu", "kappa", "weights"}
    assert uniform(2).numpy()["dim"].tolist() == [4, 4]
    same(au.VonMisesFisher(**arrays), q)
    assert au.VonMisesFisher([1.0, 0.0], 3).dtype == torch.float32
    assert au.VonMisesFisher([[1, 0], [0, 1]], [3, 4]).kappa.tolist() == [3, 4]
    assert au.VonMisesFisher(np.eye(3, dtype=np.float16), np.float32(2)).dtype == torch.float32
    assert au.VonMisesFisher(np.eye(3)[::-1], np.arange(3)).shape == (3,)
    assert au.VonMisesFisher([torch.eye(3)[0], torch.eye(3)[1]], 1.0).shape == (2,)
    mixed = au.MixtureVMF([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], [3.0, 4.0])
    assert mixed.log_prob([0.6, 0.8]).shape == ()
    point = np.array([0.5, 0.5, 0.5, 0.5])
    assert torch.equal(q.log_prob(point), q.log_prob(torch.from_numpy(point)))
    assert uniform(2).log_prob(point).shape == (2,)
    assert au.VonMisesFisher.fit(np.eye(3), [1, 2, 3]).shape == ()
    assert q.transport(np.full((3, 4), 0.5)).shape == (3, 4)
    with pytest.raises(RuntimeError):
        au.VonMisesFisher(torch.eye(2), torch.ones(2, requires_grad=True)).numpy()


@pytest.mark.parametrize(
    "mu",
    ["north", [["a", "b"]], [[1.0, 0.0], [1.0]], None, {}, np.array(["x"]), torch.eye(2).long()],
)
def test_what_is_no_array_is_an_error(mu):
    with pytest.raises(InvalidInputError):
        au.VonMisesFisher(mu, 1.0)


def test_masses_broadcast():
    q = vmf(5, 3, dtype=torch.float64)
    found = q.credible_cosine(mass=[0.5, 0.9])
    assert found.shape == (2, 5, 3)
    for row, mass in zip(found, (0.5, 0.9), strict=True):
        assert torch.equal(row, q.credible_cosine(mass))
    assert q[0, 0].credible_cosine([0.5, 0.9]).shape == (2,)
    assert q.credible_height((0.1,)).shape == (1, 5, 3)
    each = np.array([0.1, 0.5, 0.9])  # an array broadcasts, as a tensor does
    assert torch.equal(q.credible_cosine(each), q.credible_cosine(torch.from_numpy(each)))
    assert q.predictive_cosine([0.5, 0.9], 20.0, [1.0, 2.0, 3.0]).shape == (2, 5, 3)
    for wrong in (1.5, [0.5, -0.1], torch.tensor([0.5, float("nan")])):
        with pytest.raises(InvalidInputError, match="mass"):
            q.credible_cosine(wrong)


def test_tables():
    pytest.importorskip("pyarrow")
    q = vmf(5)
    values = json.loads(json.dumps(q.to_dict()))
    same(au.VonMisesFisher(normalize(torch.tensor(values["mu"])), values["kappa"]), q, 1e-6)
    for q in (vmf(5), mixture(5), uniform(5)):
        table = q.to_arrow()
        assert (table.num_rows, table.column_names) == (5, list(q.numpy()))
        for name, array in q.numpy().items():
            assert np.allclose(np.array(table[name].to_pylist()), array, rtol=1e-6)
    with pytest.raises(InvalidInputError, match=r"batch shape is \(5, 1\)"):
        vmf(5, 1).to_arrow()


def test_repr_has_shape_dim_and_kappa():
    q = au.VonMisesFisher(torch.eye(3), torch.tensor([1.0, 2.5, 1e4]))
    assert repr(q) == "VonMisesFisher(batch_shape=(3,), dim=3, kappa in [1, 10000])"
    assert repr(q[0]) == "VonMisesFisher(batch_shape=(), dim=3, kappa 1)"
    assert repr(q[:0]) == "VonMisesFisher(batch_shape=(0,), dim=3, no kappa)"
    assert repr(q.to("meta")) == "VonMisesFisher(batch_shape=(3,), dim=3, kappa on meta)"
    mixed = au.MixtureVMF(torch.ones(3), q.mu, q.kappa)
    assert repr(mixed) == "MixtureVMF(batch_shape=(), k=3, dim=3, kappa in [1, 10000])"
    assert repr(uniform(2)) == "SphereUniform(batch_shape=(2,), dim=4)"


def test_meta_keeps_shapes():
    q = au.VonMisesFisher(torch.empty(7, 5, device="meta"), torch.empty(7, device="meta"))
    assert q.entropy().shape == q.log_prob(q.mu).shape == (7,)
    assert q.mean.shape == (7, 5)
    assert q.expand((2, 7)).shape == (2, 7)
    mixed = au.MixtureVMF(
        torch.empty(7, 2, device="meta"), torch.empty(7, 2, 5, device="meta"), 3.0
    )
    assert mixed[2:].shape == (5,)
    assert au.SphereUniform(5, (7,), device="meta").mean.shape == (7, 5)
    with torch.device("meta"):
        assert au.VonMisesFisher(torch.ones(2, 3), 1.0).device.type == "meta"


def test_values_do_not_import_tables():
    import subprocess
    import sys

    code = "import sys, aureole; print(sorted({'pandas', 'pyarrow', 'polars'} & set(sys.modules)))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_a_posterior_of_a_batch_is_that_of_its_items():
    q = vmf(4, dtype=torch.float64)
    z = sphere.normalize(torch.randn(4, dtype=torch.float64))
    each = torch.stack([item.log_prob(z) for item in q])
    assert torch.allclose(each, q.log_prob(z), rtol=1e-13)
