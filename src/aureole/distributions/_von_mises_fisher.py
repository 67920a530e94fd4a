"""The von Mises-Fisher and the uniform distribution on the unit sphere, correct from D = 2 to 4096."""

from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import Distribution, constraints

from aureole import sphere
from aureole._validation import check_dim
from aureole.distributions._constraint import check_kappa, check_points, check_unit, unit_sphere
from aureole.distributions._values import BatchValue, as_tensor, kappa_range, loadable
from aureole.errors import InvalidInputError
from aureole.sphere import log_sphere_area, normalize, predictive_angle
from aureole.sphere._geometry import place, wrap
from aureole.sphere._normalizer import transverse_variance
from aureole.sphere._sampling import random_height


@loadable
class VonMisesFisher(BatchValue):
    r"""The von Mises-Fisher distribution :math:`p(z) = C_D(\kappa)\,e^{\kappa \mu^T z}` on the unit sphere in R^D.

    kappa = 0 is the uniform distribution and kappa = inf the point mu: both are valid wherever a posterior is, in caps,
    losses and galleries too. Only what has no finite value for a point raises: ``ELK`` and the calibration of kappa. A
    negative or NaN kappa, and a mu that is zero or not a unit vector, raise ``InvalidInputError``.

    ``rsample`` inverts the distribution function of the angle to mu: a fixed cost and the exact pathwise gradient in mu
    and kappa. ``sample`` draws it by rejection.

    A batch works like a tensor: ``len(q)``, ``q[3]``, ``q.to("cuda")``, ``torch.cat([q, q])``, and so on.

    Parameters
    ----------
    mu
        Mean directions, unit vectors ``[*batch, D]``: a tensor, an array or lists.
    kappa
        Concentrations ``[*batch]``, or one number. Batch shapes broadcast. Both are promoted to one dtype of at
        least float32. Where that widens mu it is normalised again, since its rounding takes it off the sphere.
    validate_args
        Whether to check mu, kappa and the arguments of ``log_prob``; by default as torch.distributions does. With
        False, ``log_prob`` and ``rsample`` never wait for the device.

    Examples
    --------
    >>> mu = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])
    >>> q = VonMisesFisher(mu, torch.tensor([10.0, 1e4]))
    >>> q
    VonMisesFisher(batch_shape=(2,), dim=3, kappa in [10, 10000])
    >>> q.mean
    tensor([[0.9000, 0.0000, 0.0000],
            [0.0000, 0.5999, 0.7999]])
    >>> q.log_prob(mu)
    tensor([0.4647, 7.3725])
    >>> q.credible_cosine(mass=0.95)
    tensor([0.7004, 0.9997])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {  # pyright: ignore[reportIncompatibleMethodOverride]
        "mu": unit_sphere,
        "kappa": constraints.nonnegative,
    }
    support = unit_sphere  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    has_rsample = True

    mu: Tensor
    kappa: Tensor

    def __init__(self, mu: Any, kappa: Any, validate_args: bool | None = None) -> None:
        mu = given = as_tensor(mu)
        mu, kappa = _promote(mu, kappa)
        if mu.dim() == 0:
            raise InvalidInputError("mu must have a last dimension of at least 2, but is a scalar.")
        dim = check_dim(mu.shape[-1])
        try:
            # not torch.broadcast_shapes, whose first call imports sympy: a second for every command
            batch_shape = torch.broadcast_tensors(mu[..., 0], kappa)[1].shape
        except RuntimeError as error:
            raise InvalidInputError(
                f"the batch shapes of mu, {tuple(mu.shape[:-1])}, and kappa, {tuple(kappa.shape)}, do not "
                "broadcast: kappa holds one number per mean direction, without the last dimension."
            ) from error
        validate = validate_args if validate_args is not None else Distribution._validate_args
        if validate and not mu.is_meta:
            # in the precision of mu as given, which for half precision says too little
            check_unit("mu", mu if torch.finfo(given.dtype).bits < 32 else given)
            check_kappa(kappa)
        self.mu = mu.expand(*batch_shape, dim)
        self.kappa = kappa.expand(batch_shape)
        super().__init__(batch_shape, torch.Size([dim]), validate_args=False)
        self._validate_args = validate

    @property
    def dim(self) -> int:
        """The ambient dimension D."""
        return self.mu.shape[-1]

    def _parts(self) -> dict[str, Tensor]:
        return {"mu": self.mu, "kappa": self.kappa}

    def _batch(self) -> Tensor:
        return self.kappa

    def _from_parts(self, parts: dict[str, Tensor]) -> "VonMisesFisher":
        mu = parts["mu"]
        # rounding in the old dtype takes a widened mu off the sphere
        mu = mu if mu.dtype == self.mu.dtype else torch.nn.functional.normalize(mu, dim=-1)
        new = type(self)(mu, parts["kappa"], validate_args=False)
        new._validate_args = self._validate_args
        return new

    def expand(
        self, batch_shape: Any, _instance: "VonMisesFisher | None" = None
    ) -> "VonMisesFisher":
        """The same distribution with its batch expanded, without copying."""
        new = cast(VonMisesFisher, self._get_checked_instance(VonMisesFisher, _instance))
        batch_shape = torch.Size(batch_shape)
        new.mu = self.mu.expand(*batch_shape, self.dim)
        new.kappa = self.kappa.expand(batch_shape)
        super(VonMisesFisher, new).__init__(batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Float[Tensor, "*batch dim"]:
        r"""The mean :math:`A(\kappa)\,\mu`, a vector inside the sphere."""
        return sphere.mean_resultant_length(self.kappa, self.dim).unsqueeze(-1) * self.mu

    @property
    def mode(self) -> Float[Tensor, "*batch dim"]:
        """The mode mu (any point is one for kappa = 0)."""
        return self.mu

    @property
    def variance(self) -> Float[Tensor, "*batch dim"]:
        r"""The variance of each coordinate, :math:`A/\kappa\,(1 - \mu_i^2) + A'\,\mu_i^2`."""
        across, along = self._variances()
        return across + (along - across) * self.mu.square()

    @property
    def covariance_matrix(self) -> Float[Tensor, "*batch dim dim"]:
        r"""The covariance :math:`A/\kappa\,(I - \mu\mu^T) + A'\,\mu\mu^T`."""
        across, along = (v.unsqueeze(-1) for v in self._variances())
        outer = self.mu.unsqueeze(-1) * self.mu.unsqueeze(-2)
        eye = torch.eye(self.dim, dtype=self.mu.dtype, device=self.mu.device)
        return across * eye + (along - across) * outer

    def _variances(self) -> tuple[Tensor, Tensor]:
        """Variances across and along mu, with a last dimension of 1."""
        across = transverse_variance(self.kappa, self.dim)
        along = sphere.mean_resultant_slope(self.kappa, self.dim)
        return across.unsqueeze(-1), along.unsqueeze(-1)

    def entropy(self) -> Float[Tensor, "*batch"]:
        r"""The differential entropy :math:`-\log C_D(\kappa) - \kappa A(\kappa)` in nats; -inf for kappa = inf."""
        return sphere.entropy(self.kappa, self.dim)

    def log_prob(self, value: Any) -> Float[Tensor, "..."]:
        r"""The log density at unit vectors, :math:`-\kappa |\mu - z|^2/2 + \log C_D(\kappa) + \kappa`.

        In this form it keeps its digits at kappa = 1e6, where :math:`\kappa \mu^T z - \kappa` would not. For kappa =
        inf it is inf at mu and -inf elsewhere. ``value`` is a tensor, an array or lists ``[..., D]``.
        """
        value = as_tensor(value, like=self.mu)
        if self._validate_args:
            self._validate_sample(value)
        gap = 0.5 * (self.mu - value).square().sum(-1)
        infinite = torch.isinf(self.kappa)
        kappa = torch.where(infinite, 0.0, self.kappa)
        finite = sphere.log_scaled_normalizer(kappa, self.dim) - kappa * gap
        point = torch.where(gap == 0, torch.inf, -torch.inf).to(finite.dtype)
        return torch.where(infinite, point, finite)

    def _validate_sample(self, value: Tensor) -> None:
        if not value.is_meta:
            check_points(value, self.batch_shape, self.dim)

    def rsample(
        self, sample_shape: Any = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... dim"]:
        """Draws ``[*sample, *batch, D]`` with the exact pathwise gradient in mu and kappa."""
        shape = self._extended_shape(torch.Size(sample_shape))[:-1]
        device = self.mu.device
        mass = torch.rand(shape, dtype=torch.float64, device=device, generator=generator)
        normals = torch.randn(
            *shape, self.dim - 1, dtype=self.mu.dtype, device=device, generator=generator
        )
        return self._place(mass, normals)

    def sample(
        self, sample_shape: Any = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... dim"]:
        """Draws ``[*sample, *batch, D]`` without a gradient, by rejection: several times faster than ``rsample``.

        Each round waits for the device to count the rejected draws; ``rsample`` never does.
        """
        shape = self._extended_shape(torch.Size(sample_shape))
        with torch.no_grad():
            normals = torch.randn(
                shape, dtype=self.mu.dtype, device=self.mu.device, generator=generator
            )
            first, tangent = normals[..., 0], normals[..., 1:]
            norm = torch.linalg.vector_norm(tangent, dim=-1)
            height = random_height(first, norm**2, self.kappa, self.dim, generator=generator)
            cosine, sine = (
                x.to(norm.dtype) for x in (1 - height, torch.sqrt(height * (2 - height)))
            )
            empty = (norm == 0).to(norm.dtype)  # a normal number is exactly 0 once in 2^24 draws
            return place(tangent, norm + empty, cosine, sine, self.mu, empty)[0]

    def transport(self, cube: Any) -> Float[Tensor, "... dim"]:
        """Draws from points of the unit cube ``[*sample, *batch, D]``: for Sobol points or common random numbers.

        The first coordinate gives the angle to mu, the others the direction around it. Coordinates at 0 and 1 are
        moved to the nearest number inside.

        Examples
        --------
        >>> q = VonMisesFisher(torch.tensor([0.6, 0.8]), 50.0)
        >>> points = torch.quasirandom.SobolEngine(2, scramble=True, seed=0).draw(1024)
        >>> q.transport(points).mean(0) / q.mean
        tensor([1.0000, 1.0000])
        """
        cube = as_tensor(cube, like=self.mu).double()
        if not bool(((cube >= 0) & (cube <= 1)).all()):
            raise InvalidInputError(
                f"cube must hold points of the unit cube, but its values run from {cube.min():.6g} to "
                f"{cube.max():.6g}. Draw them with torch.quasirandom.SobolEngine or torch.rand."
            )
        cube = torch.broadcast_tensors(cube, self.mu)[0]
        cube = cube.clamp(2.0**-60, 1 - 2.0**-53)
        normals = torch.special.ndtri(cube[..., 1:]).to(self.mu.dtype)
        return self._place(cube[..., 0], normals)

    def _place(self, mass: Tensor, normals: Tensor) -> Tensor:
        angle = sphere.cap_angle(mass, self.kappa, self.dim).to(self.mu.dtype)
        return wrap(normals, angle, self.mu)

    def credible_cosine(self, mass: Any) -> Float[Tensor, "..."]:
        r"""The cosine t with :math:`P(\mu^T z \ge t)` = ``mass``: the edge of the credible cap around mu.

        The cap covers the latent z. At large kappa t crowds at 1: ``credible_height`` keeps the digits.

        Parameters
        ----------
        mass
            A probability; a list of them for a result ``[len(mass), *batch]``; or a tensor or an array that broadcasts
            with the batch.

        Examples
        --------
        >>> q = VonMisesFisher(torch.eye(3), torch.tensor([5.0, 50.0, 500.0]))
        >>> q.credible_cosine(mass=[0.5, 0.9])
        tensor([[0.8614, 0.9861, 0.9986],
                [0.5396, 0.9539, 0.9954]])
        """
        return torch.cos(self._credible_angle(mass)).to(self.mu.dtype)

    def credible_height(self, mass: Any) -> Float[Tensor, "..."]:
        """The height 1 - t of the credible cap of ``mass``, with all its digits for every kappa."""
        return (2 * torch.sin(self._credible_angle(mass) / 2).square()).to(self.mu.dtype)

    def predictive_cosine(
        self, mass: Any, kappa_pos: float, kappa_other: Any
    ) -> Float[Tensor, "..."]:
        r"""The cosine t with :math:`P(\mu^T \mu^+ \ge t)` = ``mass``: the edge of the predictive cap around mu.

        The cap covers the mu+ of a partner whose posterior has concentration ``kappa_other``, where mu is uniform
        over the data. It is wider than the credible cap, which covers the latent (``sphere.predictive_angle``).

        Examples
        --------
        >>> q = VonMisesFisher(torch.eye(10)[0], 24.0)
        >>> q.predictive_cosine(0.9, kappa_pos=20.0, kappa_other=24.0) < q.credible_cosine(0.9)
        tensor(True)
        """
        other = torch.as_tensor(kappa_other, dtype=torch.float64, device=self.mu.device)
        level = self._checked_mass(mass)
        angle = predictive_angle(level, self.kappa.double(), other, kappa_pos, self.dim)
        return torch.cos(angle).to(self.mu.dtype)

    def _credible_angle(self, mass: Any) -> Tensor:
        return sphere.cap_angle(self._checked_mass(mass), self.kappa, self.dim)

    def _checked_mass(self, mass: Any) -> Tensor:
        """The mass as a tensor that broadcasts with the batch; a list gets dimensions of its own before it."""
        level = torch.as_tensor(mass, dtype=torch.float64, device=self.mu.device)
        if isinstance(mass, Sequence):
            level = level.reshape(*level.shape, *(1 for _ in self.batch_shape))
        if isinstance(mass, int | float):  # without a look at the device
            low, high = mass, mass
        elif level.is_meta or not level.numel():
            return level
        else:
            low, high = level.min().item(), level.max().item()
        if not (low >= 0 and high <= 1):
            raise InvalidInputError(
                f"mass must be a probability between 0 and 1, but runs from {low:.6g} to {high:.6g}."
            )
        return level

    @classmethod
    def fit(cls, samples: Any, weights: Any = None) -> "VonMisesFisher":
        r"""The maximum-likelihood distribution of unit vectors ``[n, *batch, D]`` with weights ``[n, *batch]``.

        mu is the direction of the weighted mean and kappa solves :math:`A(\kappa)` = its length. The estimate of kappa
        is biased upward when n is not large against D.

        Examples
        --------
        >>> truth = VonMisesFisher(torch.tensor([0.0, 0.6, 0.8]), 40.0)
        >>> draws = truth.sample((10000,), generator=torch.Generator().manual_seed(0))
        >>> VonMisesFisher.fit(draws).kappa
        tensor(39.2...)
        """
        samples = as_tensor(samples)
        if samples.dim() < 2 or samples.shape[0] == 0:
            raise InvalidInputError(
                f"fit needs samples of shape (n, ..., dim) with n > 0, but got {tuple(samples.shape)}."
            )
        check_unit("samples", samples)
        if weights is None:
            weights = torch.ones_like(samples[..., 0])
        weights = as_tensor(weights, like=samples)
        if bool((~(weights >= 0)).any()) or bool((weights.sum(0) <= 0).any()):
            raise InvalidInputError("weights must be nonnegative and have a positive sum.")
        weights = (weights / weights.sum(0)).unsqueeze(-1)
        resultant = (weights * samples).sum(0)
        length = torch.linalg.vector_norm(resultant, dim=-1, keepdim=True)
        axis = torch.zeros_like(resultant)
        axis[..., 0] = 1
        mu = torch.where(length > 0, resultant / torch.where(length > 0, length, 1.0), axis)
        # 1 - length, summed from the distances to mu, keeps its digits for concentrated samples
        gap = (weights * 0.5 * (samples - mu).square()).sum((0, -1)).clamp(max=1)
        kappa = sphere.inverse_mean_resultant_length(gap, samples.shape[-1], complement=True)
        return cls(mu, kappa.clamp(min=0))

    def __repr__(self) -> str:
        shape, kappa = tuple(self.batch_shape), kappa_range(self.kappa)
        return f"VonMisesFisher(batch_shape={shape}, dim={self.dim}, {kappa})"


@loadable
class SphereUniform(BatchValue):
    """The uniform distribution on the unit sphere in R^dim: vMF with kappa = 0, without a mu.

    Examples
    --------
    >>> u = SphereUniform(3)
    >>> u.entropy()  # log(4 pi)
    tensor(2.5310)
    >>> u.sample((5,)).shape
    torch.Size([5, 3])
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}  # pyright: ignore[reportIncompatibleMethodOverride]
    support = unit_sphere  # pyright: ignore[reportIncompatibleMethodOverride, reportAssignmentType]
    has_rsample = True

    def __init__(
        self,
        dim: int,
        batch_shape: Any = (),
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        validate_args: bool | None = None,
    ) -> None:
        self.dim = check_dim(dim)
        self._dtype, self._device = dtype, torch.device(device)
        super().__init__(torch.Size(batch_shape), torch.Size([dim]), validate_args=validate_args)

    def _batch(self) -> Tensor:
        return torch.zeros((), dtype=self._dtype, device=self._device).expand(self.batch_shape)

    def _parts(self) -> dict[str, Tensor]:
        return {"batch": self._batch()}  # it has no parameters, but a shape, a dtype and a device

    def _from_parts(self, parts: dict[str, Tensor]) -> "SphereUniform":
        batch = parts["batch"]
        given = {"dtype": batch.dtype, "device": batch.device, "validate_args": self._validate_args}
        return type(self)(self.dim, batch.shape, **given)

    def _columns(self) -> dict[str, Tensor]:
        return {"dim": torch.full(self.batch_shape, self.dim)}

    def _state(self) -> dict[str, Any]:
        names = ("dim", "batch_shape", "dtype", "device")
        return {name: getattr(self, name) for name in names} | {
            "validate_args": self._validate_args
        }

    def expand(self, batch_shape: Any, _instance: "SphereUniform | None" = None) -> "SphereUniform":
        """The same distribution with its batch expanded."""
        new = cast(SphereUniform, self._get_checked_instance(SphereUniform, _instance))
        new.dim, new._dtype, new._device = self.dim, self.dtype, self.device
        super(SphereUniform, new).__init__(
            torch.Size(batch_shape), self.event_shape, validate_args=False
        )
        new._validate_args = self._validate_args
        return new

    @property
    def mean(self) -> Float[Tensor, "*batch dim"]:
        """The mean, which is 0, the centre of the sphere."""
        return self._full(0.0, *self.event_shape)

    @property
    def variance(self) -> Float[Tensor, "*batch dim"]:
        """The variance of each coordinate, 1/D."""
        return self._full(1 / self.dim, *self.event_shape)

    def entropy(self) -> Float[Tensor, "*batch"]:
        """The differential entropy, the log of the sphere's area."""
        return self._full(log_sphere_area(self.dim))

    def log_prob(self, value: Any) -> Float[Tensor, "..."]:
        """The log density at unit vectors, minus the log of the sphere's area."""
        value = as_tensor(value)
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        return torch.full(shape, -log_sphere_area(self.dim), dtype=self.dtype, device=value.device)

    def _validate_sample(self, value: Tensor) -> None:
        if not value.is_meta:
            check_points(value, self.batch_shape, self.dim)

    def rsample(
        self, sample_shape: Any = (), *, generator: torch.Generator | None = None
    ) -> Float[Tensor, "... dim"]:
        """Draws ``[*sample, *batch, D]``; there is no parameter to differentiate."""
        shape = self._extended_shape(torch.Size(sample_shape))
        normals = torch.randn(shape, dtype=self.dtype, device=self.device, generator=generator)
        return normalize(normals)

    def _full(self, value: float, *event: int) -> Tensor:
        shape = (*self.batch_shape, *event)
        return torch.full(shape, value, dtype=self.dtype, device=self.device)

    def __repr__(self) -> str:
        return f"SphereUniform(batch_shape={tuple(self.batch_shape)}, dim={self.dim})"


def _promote(mu: Tensor, kappa: Any) -> tuple[Tensor, Tensor]:
    """Both in one floating dtype of at least float32, on mu's device; a widened mu is normalised again."""
    if not mu.is_floating_point():
        raise InvalidInputError(f"mu must be a floating-point tensor, but is {mu.dtype}.")
    dtype = torch.promote_types(mu.dtype, torch.float32)
    kappa = kappa if isinstance(kappa, float | int) else as_tensor(kappa, like=mu)
    if isinstance(kappa, Tensor) and kappa.is_floating_point():
        dtype = torch.promote_types(dtype, kappa.dtype)
    kappa = torch.as_tensor(kappa, dtype=dtype, device=mu.device)
    if mu.dtype != dtype:
        mu = torch.nn.functional.normalize(mu.to(dtype), dim=-1)
    return mu, kappa
