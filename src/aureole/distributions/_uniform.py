"""The uniform distribution on the unit sphere."""

from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributions import constraints

from aureole._validation import check_dim
from aureole.distributions._constraint import check_points, unit_sphere
from aureole.distributions._values import BatchValue, as_tensor, loadable
from aureole.sphere import log_sphere_area, normalize


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
