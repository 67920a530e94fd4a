"""Child processes: they are started again when they die, have limits, and end with their parent."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from aureole.data._image_files import read_square
from aureole.embed import ModelSpec, load_embedder
from aureole.errors import AureoleError, InvalidInputError
from aureole.serve._workers import Decoder, ModelProcess, Worker, WorkerError
from tests.serve.test_attacks import png


@pytest.fixture
def worker():
    made = Worker(str.upper, "ready", timeout=2.0)
    yield made
    made.close()


def is_running(pid):
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def wait_for_the_end(pid):
    end = time.monotonic() + 10
    while is_running(pid):
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_process_that_dies_or_hangs_is_started_again(worker):
    assert worker.open() == "READY"
    assert worker.call(str.upper, "a") == "A"
    first = worker.pid
    with pytest.raises(WorkerError, match="died"):
        worker.call(os._exit, 3)
    assert worker.call(str.upper, "b") == "B"
    assert worker.pid != first
    second = worker.pid
    with pytest.raises(WorkerError, match="within 2 s"):
        worker.call(time.sleep, 60)
    assert worker.call(str.upper, "c") == "C"
    wait_for_the_end(second)
    with pytest.raises(ValueError, match="invalid literal"):  # an error of the call itself
        worker.call(int, "x")


def test_a_process_ends_with_its_parent():
    code = (
        "import os; from aureole.serve._workers import Worker; w = Worker(str, timeout=9.0); w.open(); "
        "print(w.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    wait_for_the_end(int(done.stdout))


def test_a_model_in_its_process_gives_what_it_gives_here(made):
    here = load_embedder(made[0] / "encoder")
    hosted = ModelProcess(ModelSpec(made[0] / "encoder"))
    try:
        for name in ("modality", "dim", "kappa_pos", "weights", "resolution", "squares"):
            assert getattr(hosted, name) == getattr(here, name)
        mu, kappa = hosted.arrays([picture.permute(1, 2, 0).numpy() for picture in made[2][:4]])
        wanted = here.embed(list(made[2][:4]))
        np.testing.assert_allclose(mu, wanted.mu, atol=1e-6)
        np.testing.assert_allclose(kappa, wanted.kappa, rtol=1e-5)
    finally:
        hosted.close()


def test_a_model_that_cannot_be_loaded_is_a_typed_error(tmp_path):
    with pytest.raises(AureoleError, match="no saved model"):
        ModelProcess(ModelSpec(tmp_path))


@pytest.fixture(scope="module")
def decoder():
    made = Decoder()
    yield made
    made.close()


def test_pictures_are_decoded_as_in_this_process(decoder, made):
    file = (made[0] / "pictures" / "item-001.png").read_bytes()
    whole = made[2][1].permute(1, 2, 0).numpy()
    np.testing.assert_array_equal(decoder.decode(file), whole)
    square = decoder.decode(file, 16)
    np.testing.assert_array_equal(square, read_square(file, 16).permute(1, 2, 0).numpy())
    with pytest.raises(InvalidInputError, match="1200000000 pixels"):
        decoder.decode(png(40_000, 30_000))


def test_a_decoder_has_little_memory_and_time(made):
    file = png(4000, 4000)
    for limits in ({"memory": 2**24}, {"timeout": 0.001}):
        small = Decoder(**limits)
        small.open()
        try:
            with pytest.raises(InvalidInputError, match=r"Scale it down|cannot be (read|decoded)"):
                small.decode(file)
        finally:
            small.close()
