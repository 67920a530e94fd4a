"""Values of one library: log C_D(kappa), and the mean cosine of its samples.

``python benchmarks/peer_values.py NAME < grid.json`` prints JSON. It needs only NAME and numpy, so that a library that
is incompatible with this project's versions can run in a separate interpreter (see ``benchmarks.peers``).
A value that a library does not return, or not in time, is a string with the reason.
"""

import json
import signal
import sys
import time

import numpy as np


def scipy_peer():
    """The scipy.stats.vonmises_fisher distribution."""
    import scipy
    from scipy.stats import vonmises_fisher

    def log_normalizer(dim, kappa):
        mu = np.eye(1, dim)[0]
        return vonmises_fisher(mu, kappa).logpdf(mu) - kappa

    def cosines(dim, kappa, n):
        return vonmises_fisher(np.eye(1, dim)[0], kappa).rvs(n, random_state=0)[:, 0]

    return scipy.__version__, log_normalizer, cosines


def tfp_peer():
    """The VonMisesFisher of TensorFlow Probability on JAX, in float64."""
    import jax

    jax.config.update("jax_enable_x64", True)
    from tensorflow_probability.substrates import jax as tfp

    def distribution(dim, kappa):
        return tfp.distributions.VonMisesFisher(np.eye(1, dim)[0], np.float64(kappa))

    def log_normalizer(dim, kappa):
        return float(distribution(dim, kappa).log_prob(np.eye(1, dim)[0])) - kappa

    def cosines(dim, kappa, n):
        return np.asarray(distribution(dim, kappa).sample(n, seed=jax.random.PRNGKey(0)))[:, 0]

    return tfp.__version__, log_normalizer, cosines


def geomstats_peer():
    """The random_von_mises_fisher of geomstats; it has no density."""
    from importlib.metadata import version

    from geomstats.geometry.hypersphere import Hypersphere

    def cosines(dim, kappa, n):
        np.random.seed(0)  # noqa: NPY002 - geomstats draws from numpy's global state
        mu = np.eye(1, dim)[0]
        return Hypersphere(dim - 1).random_von_mises_fisher(mu=mu, kappa=kappa, n_samples=n)[:, 0]

    return version("geomstats"), None, cosines


def svae_peer():
    """The S-VAE's VonMisesFisher (nicola-decao/s-vae-pytorch), in float64."""
    import torch
    from hyperspherical_vae.distributions import VonMisesFisher

    def distribution(dim, kappa):
        return VonMisesFisher(
            torch.eye(1, dim, dtype=torch.float64), torch.full((1, 1), kappa, dtype=torch.float64)
        )

    def log_normalizer(dim, kappa):
        return -float(distribution(dim, kappa)._log_normalization())

    def cosines(dim, kappa, n):
        torch.manual_seed(0)
        return distribution(dim, kappa).rsample(torch.Size([n]))[:, 0, 0].detach().numpy()

    return "671c46c0772a", log_normalizer, cosines


def mcinfonce_peer():
    """The paper's public code (mkirchhof/Probabilistic_Contrastive_Learning), in float64."""
    import types

    import torch

    sys.modules["wandb"] = types.ModuleType("wandb")  # its logger, which these functions do not use
    from utils.utils import log_vmf_norm_const
    from utils.vmf_sampler import VonMisesFisher

    def log_normalizer(dim, kappa):
        return float(log_vmf_norm_const(kappa, dim))

    def cosines(dim, kappa, n):
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        found = VonMisesFisher(
            torch.eye(1, dim).double(), torch.full((1, 1), kappa, dtype=torch.float64)
        )
        return found.rsample(torch.Size([n]))[:, 0, 0].numpy()

    return "b0f70c07e2bc", log_normalizer, cosines


def aureole_peer():
    """The library itself, in float64."""
    import torch

    import aureole as au

    def log_normalizer(dim, kappa):
        return float(au.sphere.log_normalizer(torch.tensor(kappa, dtype=torch.float64), dim))

    def cosines(dim, kappa, n):
        q = au.VonMisesFisher(torch.eye(1, dim, dtype=torch.float64)[0], float(kappa))
        return q.sample((n,), generator=torch.Generator().manual_seed(0))[:, 0].numpy()

    return au.__version__, log_normalizer, cosines


PEERS = {
    "aureole": aureole_peer,
    "scipy": scipy_peer,
    "TFP": tfp_peer,
    "geomstats": geomstats_peer,
    "S-VAE": svae_peer,
    "mcinfonce": mcinfonce_peer,
}


def asked(function, *arguments, seconds):
    """The result of the function, or the reason why there is none."""

    def stop(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return function(*arguments)
    except TimeoutError:
        return f"nothing in {seconds} s"
    except Exception as error:  # any failure of a peer is a result
        return f"{type(error).__name__}: {str(error)[:80]}"
    finally:
        signal.alarm(0)


def normalizer_values(function, grid):
    """Log C_D(kappa) by "D kappa"; None if it is not finite."""
    values = {}
    for dim, kappa in grid:
        with np.errstate(all="ignore"):
            found = asked(function, dim, kappa, seconds=20)
        values[f"{dim} {kappa:g}"] = (
            found if isinstance(found, str) else (float(found) if np.isfinite(found) else None)
        )
    return values


def draw_values(function, grid, draws):
    """The mean and standard deviation of the samples' cosine, and the seconds they took, by "D kappa"."""
    values = {}
    for dim, kappa in grid:
        start = time.perf_counter()
        found = asked(function, dim, kappa, draws, seconds=120)
        seconds = time.perf_counter() - start
        if isinstance(found, str):
            values[f"{dim} {kappa:g}"] = found
        elif not np.isfinite(found).all():
            values[f"{dim} {kappa:g}"] = None
        else:
            values[f"{dim} {kappa:g}"] = {
                "mean": float(found.mean()), "spread": float(found.std()), "seconds": seconds
            }  # fmt: skip
    return values


def main():
    asked_for = json.load(sys.stdin)
    version, log_normalizer, cosines = PEERS[sys.argv[1]]()
    found = {"version": version}
    if log_normalizer:
        found["log normaliser"] = normalizer_values(log_normalizer, asked_for["log normaliser"])
    found["draws"] = draw_values(cosines, asked_for["draws"], asked_for["n"])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
