"""Networks for vectors: the paper's plain MLPs, and residual ones that train faster."""

from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn


def paper_mlp(n_in: int, n_out: int, *, dim: int | None = None, n_hidden: int = 6) -> nn.Sequential:
    """The paper's encoder network (supplement B.1): widths 10 D, then 50 D, then 10 D, leaky ReLUs, default init.

    ``dim`` is the D of the widths, ``n_in`` unless given. ``n_hidden`` counts the linear layers between the first and
    the last; 0 leaves three layers of width 10 D in all.

    Examples
    --------
    >>> [layer.out_features for layer in paper_mlp(10, 10) if isinstance(layer, nn.Linear)]
    [100, 500, 500, 500, 500, 500, 100, 10]
    """
    dim = n_in if dim is None else dim
    narrow, wide = 10 * dim, 50 * dim
    widths = [n_in, narrow, *([wide] * (n_hidden - 1)), narrow, n_out]
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.LeakyReLU()]
    return nn.Sequential(*layers[:-1])


class ResidualMLP(nn.Module):
    r"""A linear layer, blocks :math:`h \leftarrow h + W_2\,\mathrm{silu}(W_1\,\mathrm{norm}(h))`, norm, linear layer.

    Blocks start as the identity (W_2 = 0) with He initialisation of W_1, so the first steps see a well-conditioned,
    nearly linear map.

    Examples
    --------
    >>> ResidualMLP(10, 3)(torch.zeros(5, 10)).shape
    torch.Size([5, 3])
    """

    def __init__(self, n_in: int, n_out: int, *, width: int = 256, n_blocks: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(n_in, width)
        self.blocks = nn.ModuleList(_Block(width) for _ in range(n_blocks))
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, n_out)

    def forward(self, x: Float[Tensor, "*batch n_in"]) -> Float[Tensor, "*batch n_out"]:
        """The outputs."""
        hidden = self.first(x)
        for block in self.blocks:
            hidden = block(hidden)
        return self.last(self.norm(hidden))


class _Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.down = nn.Linear(width, width)
        nn.init.kaiming_normal_(self.up.weight)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.down(torch.nn.functional.silu(self.up(self.norm(hidden))))
