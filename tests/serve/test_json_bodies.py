"""The size of a JSON body counted in parts, and large bodies parsed in turn."""

import asyncio
import json
import random
import time

import pytest

from aureole.serve._errors import ApiError
from aureole.serve._json_bodies import JsonParser, JsonSize, parse_json

_TEXTS = ('x\\"', "\\", "\\\\", '"', ",{", ":[", "é")


def _counts(value) -> tuple[int, int, int]:
    """Keys, commas and containers of a parsed value."""
    if isinstance(value, dict):
        found, children = (len(value), max(0, len(value) - 1), 1), list(value.values())
    elif isinstance(value, list):
        found, children = (0, max(0, len(value) - 1), 1), value
    else:
        return 0, 0, 0
    for child in children:
        found = tuple(a + b for a, b in zip(found, _counts(child), strict=True))
    return found


def _counted(body: bytes, rng: random.Random) -> tuple[int, int, int]:
    size, start = JsonSize(), 0
    while start < len(body):
        end = start + rng.randint(1, 6)
        size.add(body[start:end])
        start = end
    return size.keys, size.values, size.containers


def test_the_count_in_parts_is_that_of_the_parsed_value():
    rng = random.Random(0)
    for _ in range(300):
        value = {
            rng.choice(_TEXTS) + str(i): [rng.choice([*_TEXTS, 1, None, {}])] * 3 for i in range(4)
        }
        body = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        assert _counted(body, rng) == _counts(value), body


@pytest.mark.parametrize(
    "body",
    [b'{"k":1,' * 2000, b"[" * 2000, b"[" + b"0," * 300_000 + b"0]", b'"' * 2**20],
    ids=["keys", "lists", "values", "strings"],
)
def test_a_body_above_a_limit_is_refused_before_it_is_parsed(body):
    with pytest.raises(ApiError, match="more than"):
        parse_json(body)


def test_large_bodies_take_turns_and_small_ones_do_not_wait():
    body = b"[" + b"0.123456," * 200_000 + b"0]"

    async def run() -> tuple[float, float]:
        parser = JsonParser()
        start = time.perf_counter()
        large = [asyncio.create_task(parser.parse(body)) for _ in range(6)]
        await asyncio.sleep(0)
        await parser.parse(b'{"limit": 1}')
        small = time.perf_counter() - start
        assert all(len(value) == 200_001 for value in await asyncio.gather(*large))
        with pytest.raises(ValueError, match="EOF"):
            await parser.parse(body[:-1])
        return small, time.perf_counter() - start

    small, all_of_them = asyncio.run(run())
    assert small < all_of_them / 3
