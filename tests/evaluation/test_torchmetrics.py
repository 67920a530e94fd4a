"""The torchmetrics equal the pure functions over several batches, and two processes on gloo equal one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from jaxtyping import install_import_hook

pytest.importorskip("torchmetrics")

with install_import_hook("aureole", "beartype.beartype"):
    from aureole.evaluation import _torchmetrics as metrics

from aureole.errors import InvalidInputError
from aureole.evaluation import augrc, aurc, r_auroc, recall_at_1, spearman
from aureole.evaluation._rejection import area_under_rejection

ROOT = Path(__file__).parents[2]
PURE = {
    metrics.RankCorrelation: spearman,
    metrics.RecallAt1: recall_at_1,
    metrics.RejectionArea: area_under_rejection,
    metrics.RAUROC: r_auroc,
    metrics.AURC: aurc,
    metrics.AUGRC: augrc,
}
N = 40


def streams(kind):
    """Two streams of N items as the metric takes them, with ties."""
    rng = torch.Generator().manual_seed(3)
    uncertainty = torch.rand(N, generator=rng).round(decimals=1)
    if kind is metrics.RankCorrelation:
        return uncertainty, (uncertainty + torch.rand(N, generator=rng)).round(decimals=1)
    if kind is metrics.RecallAt1:
        return torch.randn(N, 5, generator=rng), torch.randint(3, (N,), generator=rng)
    return uncertainty, torch.rand(N, generator=rng) > uncertainty


def spread(rank):
    """{name: value} over two ranks: batches of different sizes, then all items on one rank."""
    found = {}
    for kind in PURE:
        a, b = streams(kind)
        uneven, lonely = kind(), kind()
        for rows in (slice(0, 13), slice(13, 29)) if rank == 0 else (slice(29, N),):
            uneven.update(a[rows], b[rows])
        rows = slice(0, N if rank == 0 else 0)
        lonely.update(a[rows], b[rows])
        found[kind.__name__] = [uneven.compute().item(), lonely.compute().item()]
    return found


@pytest.mark.parametrize("kind", PURE)
@pytest.mark.parametrize("sizes", [[N], [1] * N, [3, 0, 30, 7]])
def test_batches_equal_the_pure_function(kind, sizes):
    a, b = streams(kind)
    wanted = pytest.approx(PURE[kind](a, b), abs=1e-12)
    metric = kind()
    for first, second in zip(a.split(sizes), b.split(sizes), strict=True):
        metric.update(first, second)
    value = metric.compute()
    assert value.item() == wanted
    assert value.dtype == torch.float64
    assert value.dim() == 0
    metric.reset()
    assert metric(a, b).item() == wanted  # forward
    assert metric.compute().item() == wanted


@pytest.mark.parametrize("kind", PURE)
def test_higher_is_better_tells_the_direction(kind):
    uncertainty, correct = torch.arange(4.0), torch.tensor([True, True, False, False])
    good, bad = (uncertainty, correct), (-uncertainty, correct)
    if kind is metrics.RankCorrelation:
        good, bad = (uncertainty, uncertainty), (uncertainty, -uncertainty)
    if kind is metrics.RecallAt1:
        mu = torch.eye(2).repeat_interleave(2, 0)
        good, bad = (mu, torch.tensor([0, 0, 1, 1])), (mu, torch.tensor([0, 1, 0, 1]))
    difference = kind()(*good) - kind()(*bad)
    assert (difference > 0) == kind.higher_is_better
    assert kind.is_differentiable is False
    assert kind.full_state_update is False


def test_gradients_are_not_kept():
    metric = metrics.RankCorrelation()
    metric.update(torch.rand(4, requires_grad=True), torch.rand(4))
    assert not metric.first[0].requires_grad


@pytest.mark.parametrize("kind", PURE)
def test_wrong_batches_are_refused_though_the_whole_would_fit(kind):
    a, b = streams(kind)
    metric = kind()
    with pytest.raises(InvalidInputError, match="same length"):
        metric.update(a[:3], b[:4])
    assert not metric.first


def test_nan_and_nothing_are_refused():
    metric = metrics.AURC()
    metric.update(torch.tensor([float("nan")]), torch.tensor([True]))
    with pytest.raises(InvalidInputError, match="NaN"):
        metric.compute()
    with (
        pytest.warns(UserWarning, match="before the ``update``"),
        pytest.raises(InvalidInputError, match="call update first"),
    ):
        metrics.AURC().compute()


def test_importing_evaluation_does_not_import_torchmetrics():
    code = "import sys, aureole.evaluation; assert 'torchmetrics' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_missing_torchmetrics_says_what_to_install():
    code = (
        "import sys; sys.modules['torchmetrics'] = None; from aureole.evaluation import RecallAt1"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert "pip install 'aureole[metrics]'" in done.stderr


@pytest.mark.slow
def test_two_ranks_equal_one_process(tmp_path):
    run = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *run, "-m", "tests.evaluation.test_torchmetrics", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"},
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for kind, pure in PURE.items():
            assert found[kind.__name__] == pytest.approx([pure(*streams(kind))] * 2, abs=1e-12), (
                kind
            )


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = spread(dist.get_rank())
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
