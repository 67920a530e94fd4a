"""Two processes on gloo, gathering, give the loss and gradient of one process on the whole batch."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_two_ranks_equal_one_process(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "tests.losses.gathered",
    ]
    done = subprocess.run(
        [sys.executable, *command, str(tmp_path / "two.json")],
        env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    two = json.loads((tmp_path / "two.json").read_text())
    code = (
        "import json, sys; from tests.losses.gathered import run; "
        "json.dump(run(0, 1, gather=False), open(sys.argv[1], 'w'))"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "one.json")],
        env=environment,
        cwd=ROOT,
        check=True,
        timeout=240,
    )
    one = json.loads((tmp_path / "one.json").read_text())
    assert len(one) == 15
    for name, truth in one.items():
        found, wanted = torch.tensor(two[name]), torch.tensor(truth)
        scale = wanted[1:].abs().max()
        assert torch.allclose(found[:1], wanted[:1], rtol=1e-5), name
        assert torch.allclose(found[1:], wanted[1:], rtol=1e-4, atol=2e-5 * scale.item()), name
