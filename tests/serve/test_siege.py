"""A small version of ``benchmarks/hostile_load.py``, attacks under load; it does not check latency."""

import pytest

from tests.serve.hostile_load import Load, siege
from tests.serve.served import make_encoder, make_gallery, serving


@pytest.mark.slow
def test_honest_clients_are_served_under_500_attacks(tmp_path):
    encoder = make_encoder(tmp_path / "encoder", 16, depth=8)
    gallery = make_gallery(tmp_path / "gallery.faiss", encoder, 500, 16)
    log = tmp_path / "log"
    with serving(gallery, encoder, log=log) as served:
        found = siege(served, 500, load=Load(clients=8))
        assert served.process.poll() is None
    print(found)
    assert found["attacks"] == 500
    assert "500" not in found["statuses of attacks"]
    assert found["honest failures"] == 0
    assert found["memory growth"] < 0.5
    assert found["seconds until ready"] < 10
    assert "Traceback" not in log.read_text()
