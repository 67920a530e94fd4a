"""``aureole quickstart``: a short run to the end, other commands on what it wrote, and folders that are not ours."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import aureole as au
from aureole.caps import CredibleIndex
from aureole.data._image_files import read_picture
from aureole.errors import InvalidInputError
from aureole.explorer._quickstart import next_steps
from aureole.records import file_hash, read_record
from tests.cli.conftest import run

pytestmark = pytest.mark.filterwarnings("ignore::aureole.errors.AureoleWarning")
SHORT = ("--max-batches", "4")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(The folder of a short run, what it said)."""
    out = tmp_path_factory.mktemp("quickstart") / "out"
    done = run("quickstart", "--out", out, *SHORT)
    assert done.exit_code == 0, done.output
    return out, done.stdout


def test_a_sentence_before_each_step_and_commands_after_the_last(finished):
    out, said = finished
    starts = ["Drawing 1,600 shapes", "Training an encoder", "Checking it", "Searching", "Writing"]
    places = [said.index(start) for start in starts]
    assert places == sorted(places)
    assert f"Open {out / 'quickstart.html'}" in said
    for _, command in next_steps(out, out / "gallery.lance"):
        assert command in said


def test_the_record_holds_what_was_said(finished):
    out, said = finished
    record = read_record(out / "quickstart.json")
    assert record.command == "aureole quickstart --max-batches 4"
    assert record.settings["steps"] == 4
    assert 0 <= record.metrics["recall_at_1"] <= 1
    assert f"rank correlation {-record.metrics['entropy_rank']:.2f}" in said
    assert record.data["caps.svg"] == file_hash(out / "caps.svg")
    assert not (out / "training.safetensors").exists()


def test_the_encoder_makes_the_gallery_again(finished):
    out, _ = finished
    encoder = au.PosteriorEncoder.load(out / "encoder")
    with CredibleIndex.open(out / "gallery.lance") as index:
        assert index.count() == 240
        stored, payload = index.fetch(["shape-007"], columns=["label", "entropy"])
    with torch.inference_mode():
        made = encoder(read_picture(out / "pictures" / "shape-007.png")[None])
    assert torch.allclose(made.mu, stored.mu, atol=1e-5)
    assert torch.allclose(made.kappa, stored.kappa, rtol=1e-4)
    from aureole.synthetic import drawn_shapes

    shapes = drawn_shapes(8, seed=1)
    assert payload["label"] == [shapes.names[int(shapes.labels[7])]]
    assert payload["entropy"] == pytest.approx([float(shapes.entropy[7])])


def test_the_page_is_one_file_that_loads_nothing(finished):
    out, _ = finished
    page = (out / "quickstart.html").read_text()
    assert page.count("data:image/png") >= 24
    assert "<script" not in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    for word in ("Most certain", "Least certain", "A search that fits the query", "aureole serve"):
        assert word in page


def test_the_next_commands_work(finished):
    out, _ = finished
    search, report, _ = (
        command.split()[1:] for _, command in next_steps(out, out / "gallery.lance")
    )
    found = json.loads(run(*search, "--json").stdout)
    assert found["cap"]["kind"] == "credible"  # as on the page
    wanted = read_record(out / "quickstart.json").metrics["searches"][1]
    assert found["query"]["kappa"] == pytest.approx(wanted["kappa"], rel=1e-4)
    assert len(found["hits"]) == wanted["members"]
    matches = json.loads(run(*search, "--kind", "predictive", "--json").stdout)
    assert matches["cap"]["kind"] == "predictive"
    assert len(matches["hits"]) >= len(found["hits"])
    assert run(*report).exit_code == 0
    assert (out / "gallery.html").stat().st_size > 100_000


def test_a_finished_run_is_not_repeated(finished):
    out, _ = finished
    before = (out / "encoder" / "weights.safetensors").stat().st_mtime_ns
    again = run("quickstart", "--out", out, *SHORT)
    assert again.exit_code == 0
    assert "already holds this quickstart" in again.stdout
    assert (out / "encoder" / "weights.safetensors").stat().st_mtime_ns == before
    found = json.loads(run("quickstart", "--out", out, *SHORT, "--json").stdout)
    assert found["recall_at_1"] == read_record(out / "quickstart.json").metrics["recall_at_1"]


def test_another_seed_in_the_same_folder_is_refused(finished):
    out, _ = finished
    done = run("quickstart", "--out", out, *SHORT, "--seed", 1)
    assert isinstance(done.exception, InvalidInputError)
    assert "another seed (0)" in str(done.exception)
    assert "--out" in str(done.exception)


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("dear")
    done = run("quickstart", "--out", tmp_path, *SHORT)
    assert isinstance(done.exception, InvalidInputError)
    assert "is not a quickstart" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]
    file = tmp_path / "thesis.txt"
    assert isinstance(run("quickstart", "--out", file, *SHORT).exception, InvalidInputError)
    assert file.read_text() == "dear"
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "plan.json").write_text("no json")
    assert isinstance(run("quickstart", "--out", tmp_path / "odd").exception, InvalidInputError)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_encoder(finished, tmp_path):
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "aureole", "quickstart", "--out", str(out), *SHORT]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not (out / "encoder").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (out / "quickstart.json").exists()
    assert run("quickstart", "--out", out, *SHORT).exit_code == 0
    first, second = (
        au.PosteriorEncoder.load(f / "encoder").state_dict() for f in (out, finished[0])
    )
    for name, value in first.items():
        assert np.allclose(value, second[name], atol=1e-5), name


@pytest.mark.parametrize(
    ("hidden", "named"),
    [
        (["lightning_fabric"], "lightning_fabric"),
        (["lance", "faiss"], "lance or faiss"),
        (["PIL", "jinja2"], "jinja2, PIL"),
    ],
)  # fmt: skip
def test_a_missing_package_is_one_line_and_status_2(tmp_path, hidden, named):
    code = (
        "import sys; [sys.modules.__setitem__(name, None) for name in sys.argv.pop(1).split(',')]; "
    )
    code += "from aureole.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, ",".join(hidden), "quickstart", "--out", str(tmp_path / "out")],
        capture_output=True, text=True, env=os.environ, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"needs {named}, which is not installed" in done.stderr
    assert "pip install 'aureole[train,explore,images,search]'" in done.stderr
    assert not (tmp_path / "out").exists()
