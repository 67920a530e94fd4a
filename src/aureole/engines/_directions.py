"""Directions as galleries store them, and exact cosines between them.

Membership in a cap is decided by one cosine: float64, of the float32 directions as stored, each divided by its own
norm, and summed in an order that depends on the dimension alone. So the result depends neither on the engine that
returned a row nor on the batch, and the cosine of a direction with itself is exactly 1.
"""

import numpy as np
from jaxtyping import Float
from torch import Tensor

POINT = 1e30  # a typical kappa that is infinite is stored as this


def stored_direction(mu: Float[Tensor, "*batch dim"]) -> np.ndarray:
    """The directions as an index stores them: normalised in float64, then rounded to float32."""
    wide = mu.numpy(force=True).astype(np.float64)
    norm = np.sqrt(np.einsum("...d,...d->...", wide, wide))
    return (wide / np.maximum(norm, 1e-12)[..., None]).astype(np.float32)


def exact_cosines(query: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """The float64 cosines [n] of a float32 direction [D] with others [n, D]; bitwise the same in any batch."""
    wide = mu.astype(np.float64)
    own = query.astype(np.float64)
    dot = np.einsum("nd,d->n", wide, own)
    square = np.einsum("nd,nd->n", wide, wide) * np.einsum("nd,nd->n", own[None], own[None])
    return np.minimum(np.maximum(dot / np.sqrt(square), -1.0), 1.0)
