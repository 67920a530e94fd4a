"""A small gallery of pictures with the encoder that made it, and services in this process or on a port of their own."""

import base64
import contextlib
import json
import threading
import time

import httpx
import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("faiss")
pytest.importorskip("PIL")

import uvicorn
from starlette.testclient import TestClient

from aureole.caps import ConformalMass, CredibleIndex
from aureole.data._image_files import write_picture
from aureole.distributions import VonMisesFisher
from aureole.embed import load_embedder
from aureole.engines import Origin
from aureole.match import MatchCalibrator
from aureole.models import Card, CifarResNet, KappaFromNorm, PosteriorEncoder
from aureole.serve import Service, create_app
from aureole.serve._service import ServiceOptions
from tests.web.visit import browser, chromium

PAGE = [
    pytest.mark.slow,
    pytest.mark.skipif(chromium() is None, reason="the page is tried in Chromium"),
]
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


@contextlib.contextmanager
def serving(index, *arguments, questions=None, calibrator=None, **options):
    """A service with these options; it is closed at the end."""
    made_service = Service(
        index,
        *arguments,
        options=ServiceOptions(**options),
        questions=questions,
        calibrator=calibrator,
    )
    try:
        yield made_service
    finally:
        made_service.close()


@pytest.fixture(scope="session")
def service(made):
    """A service of all that is there."""
    with (
        CredibleIndex.open(made[0] / "gallery.faiss") as index,
        serving(
            index,
            load_embedder(made[0] / "encoder"),
            pictures=made[0] / "pictures",
            label_column="label",
            text_column="caption",
        ) as found,
    ):
        yield found


def client_of(service, access=None):
    """A client of a service in this process; failures of the service are answers, not exceptions."""
    app = create_app(service, access)
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


@pytest.fixture(scope="session")
def client(service):
    with client_of(service) as found:
        yield found


@contextlib.contextmanager
def running(service, access=None):
    """(Host, port) of a server of the service, in a thread."""
    config = uvicorn.Config(
        create_app(service, access), port=0, http="h11", lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(15)
        assert not thread.is_alive()


@pytest.fixture(scope="session")
def place(service):
    with running(service) as found:
        yield found


@contextlib.contextmanager
def page_of(index, *arguments, **options):
    """The address of a service of an index with these options, for a browser."""
    with serving(index, *arguments, **options) as service, running(service) as (host, port):
        yield f"http://{host}:{port}/"


@pytest.fixture(scope="module")
def chrome():
    pytest.importorskip("playwright")
    with browser() as found:
        yield found


def ask(place, method, path, **options):
    """The response of a service at (host, port)."""
    return httpx.request(method, f"http://{place[0]}:{place[1]}{path}", timeout=60, **options)


def found(response):
    """The JSON of a successful response."""
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response, status, code):
    """The message of a response that must be a typed error."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    error = json.loads(response.content)["error"]
    assert set(error) == {"code", "message", "field"}
    assert error["code"] == code
    return error["message"]


def in_base64(content):
    return base64.b64encode(getattr(content, "read_bytes", lambda: content)()).decode()
