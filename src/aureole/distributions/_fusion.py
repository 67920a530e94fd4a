"""The product of posteriors: what several views of one thing say together."""

import torch

from aureole.distributions._von_mises_fisher import VonMisesFisher
from aureole.errors import InvalidInputError


def fuse(*posteriors: VonMisesFisher, axis: int | None = None) -> VonMisesFisher:
    r"""The normalised product of vMF posteriors, itself a vMF: :math:`\kappa\mu = \sum_i \kappa_i\mu_i`.

    Views that agree add their concentrations; views that contradict each other cancel, down to kappa = 0 (where mu is
    that of the first). Points, kappa = inf, outweigh all others: the result is the point in their mean direction.

    Parameters
    ----------
    posteriors
        Posteriors whose batch shapes broadcast; or one posterior, whose batch dimension ``axis`` runs over the views
        (negative ones count from the end).

    Examples
    --------
    >>> front = VonMisesFisher(torch.tensor([1.0, 0.0]), 30.0)
    >>> side = VonMisesFisher(torch.tensor([0.0, 1.0]), 40.0)
    >>> both = fuse(front, side)
    >>> both.mu, both.kappa
    (tensor([0.6000, 0.8000]), tensor(50.))
    """
    if (axis is None) == (len(posteriors) == 1) or not posteriors:
        raise InvalidInputError(
            "fuse takes either several posteriors, fuse(q1, q2), or one with the axis of its batch that runs "
            f"over the views, fuse(q, axis=0); got {len(posteriors)} and axis={axis}."
        )
    if axis is None:
        dims = {q.dim for q in posteriors}
        if len(dims) > 1:
            raise InvalidInputError(
                f"posteriors on different spheres cannot be fused: R^D with D in {sorted(dims)}."
            )
        shape = torch.broadcast_shapes(*(q.batch_shape for q in posteriors))
        mu = torch.stack([q.mu.expand(*shape, q.dim) for q in posteriors])
        kappa = torch.stack([q.kappa.expand(shape) for q in posteriors])
        axis = 0
    else:
        (posterior,) = posteriors
        n_axes = len(posterior.batch_shape)
        if not -n_axes <= axis < n_axes:
            raise InvalidInputError(
                f"fuse needs an axis of the batch, whose shape is {tuple(posterior.batch_shape)}, but got axis={axis}"
                + (": one posterior alone holds no views." if n_axes == 0 else ".")
            )
        if posterior.batch_shape[axis] == 0:
            raise InvalidInputError(
                f"fuse needs one view or more, but axis {axis} of the batch {tuple(posterior.batch_shape)} is empty."
            )
        axis = axis % n_axes
        mu, kappa = posterior.mu, posterior.kappa
    point = torch.isinf(kappa)
    any_point = point.any(axis, keepdim=True)
    weight = torch.where(any_point, point.to(kappa.dtype), torch.where(point, 0.0, kappa))
    # the largest weight is divided out: weights of 1e300 do not overflow when squared
    scale = weight.amax(axis, keepdim=True)
    scale = torch.where(scale > 0, scale, 1.0).detach()
    resultant = ((weight / scale).unsqueeze(-1) * mu).sum(axis)
    nonzero = (resultant != 0).any(-1, keepdim=True)
    safe = torch.where(nonzero, resultant, 1.0)
    length = torch.linalg.vector_norm(safe, dim=-1, keepdim=True)
    direction = torch.where(nonzero, safe / length, mu.select(axis, 0))
    total = torch.where(nonzero, length, 0.0).squeeze(-1) * scale.squeeze(axis)
    total = torch.where(any_point.squeeze(axis), torch.inf, total)
    return VonMisesFisher(direction, total)
