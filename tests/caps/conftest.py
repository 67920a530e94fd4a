"""The galleries and engines of the tests of engines."""

from tests.engines.conftest import durable, place, server, small

__all__ = ["durable", "place", "server", "small"]
