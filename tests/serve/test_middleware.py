"""The rate limiter and the API key. Limits over HTTP: ``test_errors.py``, ``test_hostile_input.py``."""

import pytest

from aureole.serve import ApiKeys
from aureole.serve._limits import RateLimiter


def test_buckets_forget_the_oldest_clients_and_never_fill_beyond_the_burst():
    buckets = RateLimiter(rate=1.0, burst=3)
    assert [buckets.take("a", 0.0) for _ in range(4)] == [0, 0, 0, 1.0]
    assert [buckets.take("a", 1000.0) for _ in range(4)] == [0, 0, 0, 1.0]
    for client in range(20_000):
        buckets.take(str(client), 1000.0)
    assert len(buckets._buckets) == 10_000
    assert RateLimiter(0.0, 1).take("a") == 0


@pytest.mark.parametrize(
    "header",
    [b"", b"Bearer", b"Bearer wrong", b"Basic !!!", b"Basic c2VjcmV0a2V5", b"Digest secretkey",
     b"secretkey", b"Bearer secretkey2", b"Bearer \xff\xfe", b"Basic \xff"],
)  # fmt: skip
def test_what_is_no_key(header):
    keys = ApiKeys({"one": "secretkey"})
    assert keys.find(header) is None
    assert keys.find(b"bearer secretkey").name == "one"
