"""A small gallery of pictures with the encoder that made it, and services that run on a port of their own."""

import base64
import contextlib
import http.client
import json
import threading
import time

import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("faiss")
pytest.importorskip("PIL")

from aureole.data import write_picture
from aureole.distributions import VonMisesFisher
from aureole.models import Card, CifarResNet, KappaFromNorm, PosteriorEncoder
from aureole.retrieval import ConformalMass, CredibleIndex, MatchCalibrator, Origin
from aureole.scale import load_embedder
from aureole.serve import Client, Pictures, Server, Service, address_of, bound_socket, create_app

N = 60
NASTY = ["../../etc/passwd", "<script>alert(1)</script>", "a/b c", "ünï%2F", "..", "x" * 200]


def names():
    return [f"item-{i:03d}" for i in range(N - len(NASTY))] + NASTY


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """(Folder with encoder, pictures and gallery.faiss, posteriors, pictures)."""
    folder = tmp_path_factory.mktemp("served")
    torch.manual_seed(0)
    encoder = PosteriorEncoder(
        CifarResNet(8), KappaFromNorm(64, 4), card=Card(name="Toy", kappa_pos=20.0)
    )
    encoder.save(folder / "encoder")
    rng = torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (N, 3, 8, 8), dtype=torch.uint8, generator=rng)
    pictures = pictures.repeat_interleave(4, 2).repeat_interleave(4, 3)
    for i, name in enumerate(names()[: N - len(NASTY)]):
        write_picture(pictures[i], folder / "pictures" / f"{name}.png")
    embedder = load_embedder(folder / "encoder")
    posterior = embedder.embed(list(pictures))
    # an untrained network looks one way: spread its directions, so that caps differ
    mu = torch.nn.functional.normalize(torch.randn(N, 4, generator=rng), dim=-1)
    mu[:10] = posterior.mu[:10]
    posterior = VonMisesFisher(mu, 5 + 60 * torch.rand(N, generator=rng))
    payload = {
        "label": [("cat", "dog", "<b>")[i % 3] for i in range(N)],
        "number": list(range(N)),
        "caption": [f"picture {i} & more" for i in range(N)],
    }
    with CredibleIndex.create(folder / "gallery.faiss", posterior, names(), payload) as index:
        index.origin = Origin(20.0, embedder.weights)
        index.conformal = ConformalMass([i / 100 for i in range(1, 100)], 20.0, 30.0)
    return folder, posterior, pictures


@pytest.fixture
def index(made):
    with CredibleIndex.open(made[0] / "gallery.faiss") as opened:
        yield opened


def calibrator_of(posterior, ids, **options):
    """A calibrator of noisy directions of the items."""
    rng = np.random.default_rng(0)
    mu = posterior.mu.numpy()
    right = rng.integers(len(ids), size=300)
    queries = mu[right] + 0.1 * rng.standard_normal((300, mu.shape[1]))
    matches = [[ids[row]] for row in right]
    return MatchCalibrator().fit(queries, mu[: len(ids)], matches, ids=list(ids), **options)


@pytest.fixture(scope="session")
def calibrator(made):
    return calibrator_of(made[1], names())


@pytest.fixture
def service(made, index):
    """A service of all that is there; it is closed at the end."""
    made_service = Service(
        index,
        load_embedder(made[0] / "encoder"),
        pictures=Pictures(made[0] / "pictures"),
        label_column="label",
        text_column="caption",
    )
    yield made_service
    made_service.close()


@contextlib.contextmanager
def running(service, **options):
    """(Host, port) of a server of the service, in a thread."""
    listening = bound_socket("127.0.0.1", 0)
    server = Server(create_app(service, **options))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield address_of(listening)
    finally:
        server.stop()
        thread.join(15)
        assert not thread.is_alive()


@pytest.fixture
def place(service):
    with running(service) as found:
        yield found


@pytest.fixture
def client(place):
    with Client(f"http://{place[0]}:{place[1]}", timeout=20.0) as made_client:
        yield made_client


def ask(place, method, path, body=None, headers=None):
    """(Status, headers, body) of a request as it is given."""
    connection = http.client.HTTPConnection(*place, timeout=20)
    try:
        sent = dict(headers or {})
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
            sent.setdefault("Content-Type", "application/json")
        connection.request(method, path, body=body, headers=sent)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def error_of(answer, status, code):
    """The message of an answer that must be a typed error."""
    assert answer[0] == status, answer
    assert answer[1]["content-type"] == "application/json"
    error = json.loads(answer[2])["error"]
    assert set(error) == {"code", "message", "field"}
    assert error["code"] == code
    return error["message"]


def in_base64(path):
    return base64.b64encode(path.read_bytes()).decode()
