"""A small encoder of pictures, folders of them, and tables to compare."""

import numpy as np
import pytest
import torch

import aureole as au
from aureole.engines._lance import lance_package
from aureole.models import CifarResNet
from aureole.training import FrozenHead
from tests.cli.conftest import columns
from tests.made_pictures import make_pictures

pytest.importorskip("lance")


def save_encoder(folder, seed=0):
    """A PosteriorEncoder with random weights in a folder."""
    torch.manual_seed(seed)
    au.PosteriorEncoder(CifarResNet(8), au.models.KappaFromNorm(64, 8)).save(folder)
    return folder


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a small encoder."""
    return save_encoder(tmp_path_factory.mktemp("model") / "encoder")


@pytest.fixture(scope="session")
def head(tmp_path_factory):
    """The folder of a head on vectors of 8 entries, with posteriors in R^4."""
    pytest.importorskip("sklearn")
    views = columns()
    fitted = FrozenHead(4, kappa_pos=8.0, steps=20, items=64)
    fitted.fit(views["v"], np.unique(views["g"], return_inverse=True)[1])
    folder = tmp_path_factory.mktemp("head") / "head"
    fitted.save(folder)
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory):
    """A folder of 230 pictures in three folders."""
    folder = tmp_path_factory.mktemp("pictures")
    make_pictures(folder, 230)
    return folder


def rows(where):
    """The rows of a Lance table in the order of their ids."""
    return lance_package().dataset(str(where)).to_table().sort_by("id").to_pylist()


def by_id(where):
    """The rows of a Lance table by id, each of which must be there once."""
    found = rows(where)
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: row for row in found}


def assert_same(left, right):
    """Two sets of rows have the same ids and posteriors to float32 rounding."""
    assert left.keys() == right.keys()
    for name, row in left.items():
        torch.testing.assert_close(
            torch.tensor([*row["mu"], row["kappa"]]),
            torch.tensor([*right[name]["mu"], right[name]["kappa"]]),
            rtol=2e-6, atol=2e-6,
        )  # fmt: skip
