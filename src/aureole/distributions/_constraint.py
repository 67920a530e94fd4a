"""The unit sphere as a constraint of torch.distributions, and the checks that name what breaks it."""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.distributions import Transform, biject_to, transform_to
from torch.distributions.constraints import Constraint, real_vector

from aureole._validation import first_index
from aureole.errors import InvalidInputError
from aureole.sphere._geometry import unit_tolerance


class UnitSphere(Constraint):
    """Unit vectors along the last dimension, to 1e-4 in float32 and 1e-8 in float64.

    Examples
    --------
    >>> unit_sphere.check(torch.tensor([[0.6, 0.8], [1.0, 1.0]]))
    tensor([ True, False])
    """

    event_dim = 1

    def check(self, value: Float[Tensor, "*batch dim"]) -> Bool[Tensor, "*batch"]:
        """Whether each vector has norm 1 (NaN has not)."""
        norm = torch.linalg.vector_norm(value, dim=-1)
        return (norm - 1).abs() <= unit_tolerance(value.dtype)

    def __repr__(self) -> str:
        return "UnitSphere()"


unit_sphere = UnitSphere()


class StereographicTransform(Transform):
    r"""The stereographic projection from R^(D-1) to the unit sphere in R^D: 0 goes to e1, infinity to -e1.

    .. math:: x \mapsto \frac{(1 - |x|^2,\, 2x)}{1 + |x|^2}

    The log determinant is that of the map to the sphere's surface, :math:`(D - 1)\log\frac{2}{1 + |x|^2}`. It is what
    ``torch.distributions.biject_to(unit_sphere)`` returns.

    Examples
    --------
    >>> StereographicTransform()(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """

    domain = real_vector
    codomain = unit_sphere
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StereographicTransform)

    def __hash__(self) -> int:
        return hash(type(self))

    def _call(self, x: Tensor) -> Tensor:
        square = x.square().sum(-1, keepdim=True)
        return torch.cat([1 - square, 2 * x], -1) / (1 + square)

    def _inverse(self, y: Tensor) -> Tensor:
        return y[..., 1:] / (1 + y[..., :1])

    def log_abs_det_jacobian(
        self, x: Float[Tensor, "*batch free"], y: Float[Tensor, "*batch dim"]
    ) -> Float[Tensor, "*batch"]:
        """The log of the factor by which areas grow from R^(D-1) to the sphere."""
        del y
        return x.shape[-1] * (math.log(2) - torch.log1p(x.square().sum(-1)))

    def forward_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the outputs, with one dimension more in the last place."""
        return (*shape[:-1], shape[-1] + 1)

    def inverse_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the inputs, with one dimension less in the last place."""
        return (*shape[:-1], shape[-1] - 1)


@biject_to.register(UnitSphere)
@transform_to.register(UnitSphere)
def _to_sphere(constraint: UnitSphere) -> StereographicTransform:
    del constraint
    return StereographicTransform()


def check_unit(name: str, vectors: Float[Tensor, "*batch dim"]) -> None:
    """Raise an error that names the first vector that is not a unit vector."""
    bad = ~unit_sphere.check(vectors)
    if bool(bad.any()):
        norm = torch.linalg.vector_norm(vectors, dim=-1)[bad][0].item()
        raise InvalidInputError(
            f"{name} must hold unit vectors, but {name}{first_index(bad)} has norm {norm:.6g} "
            f"(tolerance {unit_tolerance(vectors.dtype):g}, shape {tuple(vectors.shape)}, "
            f"{int(bad.sum())} of {bad.numel()} are off). Call sphere.normalize({name}) first."
        )


def check_kappa(kappa: Float[Tensor, "*batch"]) -> None:
    """Raise an error that names the first kappa that is negative or NaN; 0 and inf are fine."""
    bad = ~(kappa >= 0)
    if bool(bad.any()):
        value = kappa[bad][0].item()
        raise InvalidInputError(
            f"kappa must be at least 0 (0 is uniform, inf a point), but kappa{first_index(bad)} is "
            f"{value:.6g} (shape {tuple(kappa.shape)}, {int(bad.sum())} of {bad.numel()} are off). "
            "Map the network's output through exp or softplus."
        )


def check_points(value: Tensor, batch_shape: torch.Size, dim: int) -> None:
    """Raise an error unless ``value`` holds unit vectors of R^dim that broadcast with the batch."""
    if not isinstance(value, Tensor) or value.dim() == 0 or value.shape[-1] != dim:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise InvalidInputError(
            f"value must hold points of R^{dim}, shape (..., {dim}), but is {got}."
        )
    try:
        torch.broadcast_shapes(value.shape[:-1], batch_shape)
    except RuntimeError as error:
        raise InvalidInputError(
            f"value of shape {tuple(value.shape)} does not broadcast with the batch shape "
            f"{tuple(batch_shape)} of the distribution over points of R^{dim}."
        ) from error
    check_unit("value", value)
