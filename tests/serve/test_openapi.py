"""Requests from the API's own description: every answer is one that is described."""

import pytest

from aureole.scale import load_embedder
from aureole.serve import Pictures, Service
from tests.serve.conftest import running

pytest.importorskip("schemathesis")

from tests.serve.fuzzing import fuzz


@pytest.fixture
def calibrated(made, index, calibrator):
    """A service in which every route is available."""
    made_service = Service(
        index,
        load_embedder(made[0] / "encoder"),
        calibrator=calibrator,
        pictures=Pictures(made[0] / "pictures"),
        label_column="label",
    )
    yield made_service
    made_service.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("which", ["service", "calibrated"])
def test_answers_are_those_described(which, request):
    service = request.getfixturevalue(which)
    with running(service) as place:
        tally = fuzz(f"http://{place[0]}:{place[1]}", examples=20)
    assert tally.faults == []
    assert tally.requests >= 200
    assert tally.statuses[200] >= 30
    assert tally.statuses[422] >= 50


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_answer_that_is_not_described_is_seen(service, monkeypatch):
    monkeypatch.setattr(service, "rejection", lambda: {"available": "perhaps"})
    monkeypatch.setattr(service, "about", lambda: 1 / 0)
    with running(service) as place:
        tally = fuzz(f"http://{place[0]}:{place[1]}", examples=1)
    assert any("GET /v1/rejection: 200" in fault for fault in tally.faults)
    assert any("GET /v1/about: 500" in fault for fault in tally.faults)
