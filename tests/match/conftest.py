"""The databases of the examples."""

from tests.engines.conftest import server

__all__ = ["server"]
