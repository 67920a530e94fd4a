"""Mixtures of von Mises-Fisher distributions: posteriors with more than one mode."""

import math
import warnings
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Categorical, MixtureSameFamily

from aureole.distributions._values import BatchValue, as_tensor, kappa_range, loadable
from aureole.distributions._von_mises_fisher import VonMisesFisher
from aureole.errors import ConvergenceWarning, InvalidInputError


@loadable
class MixtureVMF(BatchValue, MixtureSameFamily):
    r"""The mixture :math:`p(z) = \sum_j w_j\,\mathrm{vMF}(z; \mu_j, \kappa_j)` with k components.

    Parameters
    ----------
    weights
        Nonnegative weights ``[*batch, k]``; scaled to sum to 1.
    mu, kappa
        Components ``[*batch, k, D]`` and ``[*batch, k]``.

    Examples
    --------
    >>> mixture = MixtureVMF(torch.tensor([0.25, 0.75]), torch.eye(2), torch.tensor([50.0, 20.0]))
    >>> mixture.mean
    tensor([0.2475, 0.7310])
    >>> mixture.log_prob(torch.eye(2))
    tensor([-0.3517,  0.2848])
    >>> mixture.mode
    tensor([0., 1.])
    """

    def __init__(
        self, weights: Any, mu: Any, kappa: Any, validate_args: bool | None = None
    ) -> None:
        mu = as_tensor(mu)
        weights = as_tensor(weights, like=mu)
        if mu.is_meta:
            validate_args = False  # Categorical would read the weights
        components = VonMisesFisher(mu, kappa, validate_args=validate_args)
        if not components.batch_shape or weights.shape[-1:] != components.batch_shape[-1:]:
            raise InvalidInputError(
                "weights, mu and kappa must agree in the number of components k: shapes (..., k), (..., k, dim) "
                f"and (..., k), but got {tuple(weights.shape)}, {tuple(mu.shape)} and "
                f"{tuple(as_tensor(kappa).shape)}."
            )
        shape = torch.broadcast_shapes(weights.shape, components.batch_shape)
        super().__init__(
            Categorical(
                probs=weights.to(components.mu.dtype).expand(shape), validate_args=validate_args
            ),
            components.expand(shape),
            validate_args=validate_args,
        )

    def _parts(self) -> dict[str, Tensor]:
        return {"mu": self.mu, "kappa": self.kappa, "weights": self.weights}

    def _batch(self) -> Tensor:
        return self.kappa[..., 0]

    def _from_parts(self, parts: dict[str, Tensor]) -> "MixtureVMF":
        mu = parts["mu"]
        mu = mu if mu.dtype == self.mu.dtype else torch.nn.functional.normalize(mu, dim=-1)
        new = type(self)(parts["weights"], mu, parts["kappa"], validate_args=False)
        new._validate_args = self._validate_args
        new.components._validate_args = self.components._validate_args
        return new

    @property
    def components(self) -> VonMisesFisher:
        """The components, with batch shape ``[*batch, k]``."""
        found = self.component_distribution
        assert isinstance(found, VonMisesFisher)
        return found

    @property
    def weights(self) -> Float[Tensor, "*batch k"]:
        """The weights, which sum to 1."""
        return self.mixture_distribution.probs

    @property
    def mu(self) -> Float[Tensor, "*batch k dim"]:
        """The components' mean directions."""
        return self.components.mu

    @property
    def kappa(self) -> Float[Tensor, "*batch k"]:
        """The components' concentrations."""
        return self.components.kappa

    @property
    def dim(self) -> int:
        """The ambient dimension D."""
        return self.components.dim

    @property
    def mode(self) -> Float[Tensor, "*batch dim"]:
        """The component mean of the highest density, which is the mode when the components are well apart."""
        density = self.log_prob(self.mu.movedim(-2, 0))
        best = density.argmax(0)[..., None, None].expand(*self.batch_shape, 1, self.dim)
        return self.mu.gather(-2, best).squeeze(-2)

    def expand(self, batch_shape: Any, _instance: "MixtureVMF | None" = None) -> "MixtureVMF":
        """The same distribution with its batch expanded, without copying."""
        new = self._get_checked_instance(MixtureVMF, _instance)
        return cast(MixtureVMF, super().expand(batch_shape, _instance=new))

    def log_prob(self, value: Any) -> Float[Tensor, "..."]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The log density at unit vectors ``[..., D]``: a tensor, an array or lists."""
        return super().log_prob(as_tensor(value, like=self.mu))

    @torch.no_grad()
    def sample(
        self, sample_shape: Any = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... dim"]:
        """Draws ``[*sample, *batch, D]`` without a gradient."""
        shape = torch.Size(sample_shape)
        weights = self.weights.reshape(-1, self.weights.shape[-1])
        count = shape.numel()
        if count == 0 or len(weights) == 0:
            return self.mu.new_empty(*shape, *self.batch_shape, self.dim)
        chosen = torch.multinomial(weights, count, replacement=True, generator=generator)
        chosen = chosen.T.reshape(*shape, *self.batch_shape, 1)
        kappa = self.kappa.expand(*shape, *self.kappa.shape).gather(-1, chosen).squeeze(-1)
        mu = self.mu.expand(*shape, *self.mu.shape)
        index = chosen.unsqueeze(-1).expand(*chosen.shape, self.dim)
        mu = mu.gather(-2, index).squeeze(-2)
        return VonMisesFisher(mu, kappa, validate_args=False).sample(generator=generator)

    @classmethod
    def fit(
        cls,
        samples: Float[Tensor, "n dim"],
        n_components: int,
        *,
        n_starts: int = 4,
        max_steps: int = 200,
        tolerance: float = 1e-6,
        max_kappa: float = 1e6,
        generator: torch.Generator | None = None,
    ) -> "MixtureVMF":
        """The mixture of highest likelihood found by expectation-maximisation from ``n_starts`` seedings.

        Each start draws its centres far from one another (k-means++ on the sphere) and runs until the mean
        log-likelihood grows by less than ``tolerance``. The likelihood is unbounded where a component sits on one
        point alone, so kappa is held below ``max_kappa``. Cost: n_starts * steps * n * k * D.

        Examples
        --------
        >>> rng = torch.Generator().manual_seed(0)
        >>> a, b = (VonMisesFisher(mu, 50.0).sample((500,), generator=rng) for mu in torch.eye(3)[:2])
        >>> fitted = MixtureVMF.fit(torch.cat([a, b, b]), 2, generator=rng)
        >>> fitted.weights.sort().values
        tensor([0.33..., 0.66...])
        """
        if samples.dim() != 2 or not 1 <= n_components <= samples.shape[0]:
            raise InvalidInputError(
                f"fit needs samples of shape (n, dim) with n >= n_components = {n_components}, "
                f"but got {tuple(samples.shape)}."
            )
        if n_starts < 1 or max_steps < 1:
            raise InvalidInputError(
                f"EM needs one start and one step or more, but got n_starts={n_starts} and max_steps={max_steps}."
            )
        best: tuple[float, MixtureVMF | None, bool] = (-math.inf, None, False)
        for _ in range(n_starts):
            found = _run(samples, n_components, max_steps, tolerance, max_kappa, generator)
            best = max(best, found, key=lambda run: run[0])
        if best[1] is None:
            raise InvalidInputError("the likelihood is not finite: samples must be unit vectors.")
        if not best[2]:
            warnings.warn(
                f"EM stopped after max_steps={max_steps} before the mean log-likelihood settled to "
                f"{tolerance:g}; raise max_steps or tolerance.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return best[1]

    def __repr__(self) -> str:
        shape, k = tuple(self.batch_shape), self.weights.shape[-1]
        return f"MixtureVMF(batch_shape={shape}, k={k}, dim={self.dim}, {kappa_range(self.kappa)})"


def _run(
    samples: Tensor,
    n_components: int,
    max_steps: int,
    tolerance: float,
    max_kappa: float,
    generator: torch.Generator | None,
) -> tuple[float, MixtureVMF, bool]:
    """(mean log-likelihood, mixture, converged) of one start of EM."""
    mixture = _maximise(samples, _nearest_centre(samples, n_components, generator), max_kappa)
    previous = -math.inf
    for _ in range(max_steps):
        joint = mixture.components.log_prob(samples.unsqueeze(1)) + mixture.weights.log()
        value = torch.logsumexp(joint, -1).mean().item()
        if value - previous < tolerance:
            return value, mixture, True
        previous = value
        mixture = _maximise(samples, torch.softmax(joint, -1), max_kappa)
    return previous, mixture, False


def _maximise(samples: Tensor, share: Tensor, max_kappa: float) -> MixtureVMF:
    """The best mixture given each sample's share [n, k] in each component."""
    n, k = share.shape
    # a component that has lost every sample keeps a vanishing share of all of them
    share = share.clamp(min=torch.finfo(share.dtype).tiny)
    fitted = VonMisesFisher.fit(samples.unsqueeze(1).expand(n, k, samples.shape[-1]), share)
    return MixtureVMF(share.sum(0) / n, fitted.mu, fitted.kappa.clamp(max=max_kappa))


def _nearest_centre(samples: Tensor, k: int, generator: torch.Generator | None) -> Tensor:
    """Hard shares [n, k] of the nearest of k centres, each drawn in proportion to its distance from the others."""
    n = samples.shape[0]
    first = torch.randint(n, (1,), generator=generator, device=samples.device)
    centres = samples[first]
    for _ in range(k - 1):
        gap = (1 - samples @ centres.T).amin(-1).clamp(min=0)
        gap = torch.where(gap.sum() > 0, gap, torch.ones_like(gap))
        centres = torch.cat([centres, samples[torch.multinomial(gap, 1, generator=generator)]])
    nearest = (samples @ centres.T).argmax(-1)
    return torch.nn.functional.one_hot(nearest, k).to(samples.dtype)
