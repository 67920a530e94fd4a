"""Speed of sampling: rsample and backward compared with a baseline, scipy and the power spherical package.

``python -m benchmarks.sampling [--repeats N] [--out results/benchmarks/sampling.json]``

The baseline ("floor") is the minimum that any sampler must do: torch.randn of the samples' shape, normalised and
reflected, forward only. scipy's sampler takes one mu at a time and has no gradient. The power spherical distribution is
a different family that is easier to sample; it replaces torch's rejection samplers, none of which is on PyPI.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import torch
from scipy.stats import vonmises_fisher

import aureole as au
from aureole import sphere
from aureole.records import Record, write_record
from benchmarks.timing import median_seconds


def posteriors(n: int, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    mu = sphere.normalize(torch.randn(n, dim)).requires_grad_()
    kappa = (dim * torch.rand(n)).requires_grad_()
    return mu, kappa


def floor(mu: torch.Tensor, n_samples: int) -> torch.Tensor:
    with torch.no_grad():
        points = torch.randn(n_samples, *mu.shape)
        points = points / points.norm(dim=-1, keepdim=True)
        axis = mu - torch.eye(mu.shape[-1])[0]
        axis = axis / axis.norm(dim=-1, keepdim=True)
        return points - 2 * (points * axis).sum(-1, keepdim=True) * axis


def ours(mu: torch.Tensor, kappa: torch.Tensor, n_samples: int, grad: torch.Tensor) -> None:
    draws = au.VonMisesFisher(mu, kappa, validate_args=False).rsample((n_samples,))
    torch.autograd.grad(draws, (mu, kappa), grad)


def power_spherical(
    mu: torch.Tensor, kappa: torch.Tensor, n_samples: int, grad: torch.Tensor
) -> Callable[[], object] | None:
    """A run of the power spherical package, or None if it is not installed."""
    try:
        from power_spherical import PowerSpherical
    except ImportError:
        return None

    def run() -> None:
        draws = PowerSpherical(mu, kappa, validate_args=False).rsample((n_samples,))
        torch.autograd.grad(draws, (mu, kappa), grad)

    return run


def against_floor(dim: int, repeats: int, n: int = 4096, n_samples: int = 16) -> dict[str, float]:
    """Seconds of the floor, our forward, our forward and backward, and the power spherical distribution's."""
    mu, kappa = posteriors(n, dim)
    grad = torch.randn(n_samples, n, dim)
    q = au.VonMisesFisher(mu, kappa, validate_args=False)
    contenders: dict[str, Callable[[], object]] = {
        "floor": lambda: floor(mu, n_samples),
        "sample": lambda: q.sample((n_samples,)),
        "rsample + backward": lambda: ours(mu, kappa, n_samples, grad),
    }
    peer = power_spherical(mu, kappa, n_samples, grad)
    if peer is not None:
        contenders["power spherical + backward"] = peer
    return median_seconds(contenders, repeats)


def one_draw(dim: int, repeats: int, n: int = 16384) -> dict[str, float]:
    """Seconds of one draw per posterior without a gradient, and of normal numbers of that shape, normalised."""
    mu, kappa = posteriors(n, dim)
    q = au.VonMisesFisher(mu.detach(), kappa.detach(), validate_args=False)
    return median_seconds(
        {
            "floor": lambda: torch.nn.functional.normalize(torch.randn(n, dim), dim=-1),
            "sample": q.sample,
        },
        repeats,
    )


def against_scipy(
    repeats: int, dim: int = 512, n: int = 64, n_samples: int = 16
) -> dict[str, float]:
    """Seconds for the same samples from scipy, one mu at a time, and from ours with the gradient."""
    mu, kappa = posteriors(n, dim)
    grad = torch.randn(n_samples, n, dim)
    mus, kappas = mu.detach().double().numpy(), kappa.detach().double().numpy()

    def scipy_draws() -> None:
        for m, k in zip(mus, kappas, strict=True):
            vonmises_fisher(m / (m @ m) ** 0.5, k).rvs(n_samples)

    return median_seconds(
        {"scipy": scipy_draws, "rsample + backward": lambda: ours(mu, kappa, n_samples, grad)},
        repeats,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/sampling.json"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    metrics: dict[str, dict[str, float]] = {}
    for dim in (128, 768):
        times = against_floor(dim, arguments.repeats)
        metrics[f"4096 x 16, D = {dim}"] = {
            "floor seconds": times["floor"],
            **{f"{k} / floor": t / times["floor"] for k, t in times.items() if k != "floor"},
        }
    for dim in (10, 128, 768):
        times = one_draw(dim, arguments.repeats)
        metrics[f"16384 x 1, D = {dim}"] = {
            "randn + normalise seconds": times["floor"],
            "sample / randn + normalise": times["sample"] / times["floor"],
        }
    times = against_scipy(arguments.repeats)
    metrics["64 x 16, D = 512"] = {
        "scipy seconds": times["scipy"],
        "scipy / rsample + backward": times["scipy"] / times["rsample + backward"],
    }
    for setting, values in metrics.items():
        print(setting)
        for name, value in values.items():
            print(f"  {name:36s} {value:8.3f}")
    settings = {"threads": torch.get_num_threads(), "repeats": arguments.repeats}
    command = "python -m benchmarks.sampling"
    write_record(
        Record("benchmark-sampling", metrics, command=command, seed=0, settings=settings),
        arguments.out,
    )


if __name__ == "__main__":
    main()
