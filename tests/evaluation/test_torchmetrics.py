"""The torchmetric equals the pure functions over several batches, and two processes on gloo equal one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

pytest.importorskip("torchmetrics")

from aureole.errors import InvalidInputError
from aureole.evaluation import StreamingMetric, augrc, aurc, r_auroc, recall_at_1, spearman

ROOT = Path(__file__).parents[2]
SCORES = (spearman, recall_at_1, r_auroc, aurc, augrc)
N = 40


def streams(score):
    """Two streams of N items as the metric takes them, with ties."""
    rng = torch.Generator().manual_seed(3)
    uncertainty = torch.rand(N, generator=rng).round(decimals=1)
    if score is spearman:
        return uncertainty, (uncertainty + torch.rand(N, generator=rng)).round(decimals=1)
    if score is recall_at_1:
        return torch.randn(N, 5, generator=rng), torch.randint(3, (N,), generator=rng)
    return uncertainty, torch.rand(N, generator=rng) > uncertainty


def spread(rank):
    """{name: value} over two ranks: batches of different sizes, then all items on one rank."""
    found = {}
    for score in SCORES:
        a, b = streams(score)
        uneven, lonely = StreamingMetric(score), StreamingMetric(score)
        for rows in (slice(0, 13), slice(13, 29)) if rank == 0 else (slice(29, N),):
            uneven.update(a[rows], b[rows])
        rows = slice(0, N if rank == 0 else 0)
        lonely.update(a[rows], b[rows])
        found[score.__name__] = [uneven.compute().item(), lonely.compute().item()]
    return found


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("sizes", [[N], [1] * N, [3, 0, 30, 7]])
def test_batches_equal_the_pure_function(score, sizes):
    a, b = streams(score)
    wanted = pytest.approx(score(a, b), abs=1e-12)
    metric = StreamingMetric(score)
    for first, second in zip(a.split(sizes), b.split(sizes), strict=True):
        metric.update(first, second)
    value = metric.compute()
    assert value.item() == wanted
    assert value.dtype == torch.float64
    assert value.dim() == 0
    metric.reset()
    assert metric(a, b).item() == wanted  # forward
    assert metric.compute().item() == wanted


@pytest.mark.parametrize("score", SCORES)
def test_higher_is_better_tells_the_direction(score):
    uncertainty, correct = torch.arange(4.0), torch.tensor([True, True, False, False])
    good, bad = (uncertainty, correct), (-uncertainty, correct)
    if score is spearman:
        good, bad = (uncertainty, uncertainty), (uncertainty, -uncertainty)
    if score is recall_at_1:
        mu = torch.eye(2).repeat_interleave(2, 0)
        good, bad = (mu, torch.tensor([0, 0, 1, 1])), (mu, torch.tensor([0, 1, 0, 1]))
    difference = StreamingMetric(score)(*good) - StreamingMetric(score)(*bad)
    assert (difference > 0) == StreamingMetric(score).higher_is_better


def test_gradients_are_not_kept():
    metric = StreamingMetric(spearman)
    metric.update(torch.rand(4, requires_grad=True), torch.rand(4))
    assert not metric.first[0].requires_grad


@pytest.mark.parametrize("score", SCORES)
def test_wrong_batches_are_refused_though_the_whole_would_fit(score):
    a, b = streams(score)
    metric = StreamingMetric(score)
    with pytest.raises(InvalidInputError, match="same length"):
        metric.update(a[:3], b[:4])
    assert not metric.first


def test_nan_and_nothing_are_refused():
    metric = StreamingMetric(aurc)
    metric.update(torch.tensor([float("nan")]), torch.tensor([True]))
    with pytest.raises(InvalidInputError, match="NaN"):
        metric.compute()
    with (
        pytest.warns(UserWarning, match="before the ``update``"),
        pytest.raises(InvalidInputError, match="call update first"),
    ):
        StreamingMetric(aurc).compute()


def test_importing_evaluation_does_not_import_torchmetrics():
    code = "import sys, aureole.evaluation; assert 'torchmetrics' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240)


def test_missing_torchmetrics_says_what_to_install():
    code = "import sys; sys.modules['torchmetrics'] = None; from aureole.evaluation import StreamingMetric"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert "pip install 'aureole[train]'" in done.stderr


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
        for score in SCORES:
            wanted = pytest.approx([score(*streams(score))] * 2, abs=1e-12)
            assert found[score.__name__] == wanted, score


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = spread(dist.get_rank())
    Path(sys.argv[1], f"{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.destroy_process_group()
