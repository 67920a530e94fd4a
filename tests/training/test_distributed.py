"""Ranks: an update does not depend on how many share it, and what would make it depend is refused."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import aureole as au
from aureole.errors import InvalidInputError
from aureole.models import CifarResNet
from aureole.models._networks import hold_statistics
from aureole.training import _distributed as distributed
from aureole.training._distributed import part_of

ROOT = Path(__file__).parents[2]


def start(n_ranks, out):
    """The module ``shared_fit`` in processes of their own."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    return subprocess.Popen(
        [sys.executable, *(launcher if n_ranks > 1 else []), "-m", "tests.training.shared_fit", str(out)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        cwd=ROOT, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.slow
def test_two_and_three_ranks_train_as_one(tmp_path):
    """Gradients to 1e-10 in float64 for pairs among items, triplets, draws and mixtures; fits to 1e-5 in float32."""
    for n in (1, 2, 3):
        running = start(n, tmp_path / f"{n}.json")
        error = running.communicate(timeout=240)[1]
        assert running.returncode == 0, error[-3000:]
    one, two, three = (json.loads((tmp_path / f"{n}.json").read_text()) for n in (1, 2, 3))
    assert len(one) == 15
    for other in (two, three):
        for name, values in one.items():
            wanted, found = (torch.tensor(v, dtype=torch.float64) for v in (values, other[name]))
            in_float32 = "phases" in name or "point" in name or "learned" in name
            scale = wanted.abs().max().clamp(min=1).item()
            assert torch.allclose(
                found, wanted, rtol=0, atol=(1e-5 if in_float32 else 1e-10) * scale
            ), name
    assert max(map(abs, one["closed form"][1:])) > 1e-3  # the gradients are no zeros


def test_shares_add_up_to_the_whole():
    rng = torch.Generator().manual_seed(0)
    posterior = au.VonMisesFisher(
        au.sphere.normalize(torch.randn(9, 5, generator=rng)), 20 * torch.rand(9, generator=rng)
    )
    pairs = torch.tensor([[0, 1], [4, 2], [4, 3], [8, 0], [5, 8]])
    parts = [slice(0, 3), slice(3, 6), slice(6, 8), slice(8, 9)]
    for loss in (
        au.ClosedFormInfoNCE(20.0, centring=0.5),
        au.InfoNCE(temperature=0.1),
        au.ELK(temperature=1.0),
    ):
        shares = [loss.share_among(posterior, pairs, part) for part in parts]
        assert shares[2] == 0
        assert torch.allclose(sum(shares), 5 * loss.among(posterior, pairs), rtol=1e-5)


def test_a_share_of_nothing_has_a_gradient():
    """A rank without pairs still takes part in the backward pass, for which the others wait."""
    mu = torch.eye(4).requires_grad_()
    posterior = au.VonMisesFisher(mu, torch.full((4,), torch.inf))
    share = au.ClosedFormInfoNCE(20.0).share_among(posterior, torch.tensor([[0, 1]]), slice(2, 4))
    share.backward()
    assert torch.equal(mu.grad, torch.zeros(4, 4))
    alone = au.InfoNCE(temperature=0.2).share(posterior, posterior, None, slice(4, 4))
    assert alone == 0
    assert alone.requires_grad


def test_batch_norms_are_refused_unless_they_hold_their_statistics():
    with pytest.raises(InvalidInputError, match="bn1 is a batch norm"):
        distributed.refuse_batch_norms(CifarResNet(8))
    distributed.refuse_batch_norms(hold_statistics(CifarResNet(8)))
    distributed.refuse_batch_norms(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


def test_one_process_is_its_own_first_rank(monkeypatch):
    assert distributed.launched() == 1
    with distributed.joined() as rank:
        assert rank == 0
    distributed.check_same_step(3, "nowhere")
    assert part_of(7) == slice(0, 7)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert distributed.launched() == 4
