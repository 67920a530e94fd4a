r"""Log positivities of all pairs of a batch, from a table that is interpolated.

:math:`f(c, \kappa, \kappa') = \log S\,h` is smooth in its arguments, so a few Chebyshev polynomials of

.. math:: s = \sqrt{a + 1 + c}, \qquad u = 1 / (\kappa + \max(\kappa_\mathrm{pos}, (D - 1) / 2))

give it over a box of cosines and concentrations, and nothing cancels at any kappa_pos. f as a function of c is singular
somewhere below -1, where a Bessel function has zeros; the root with the right a moves that point away and halves the
number of polynomials. For each degree in s the matrix of coefficients in u and u' is cut to its numerical rank, so all
pairs cost one product of thin matrices and two elementwise operations per degree.

Accuracy: the tails of the coefficients are below ``tolerance`` in f, 1e-6 for float32 and 3e-9 for float64. In float32
the rounding of the cosine (6e-8) times the slope of f comes on top.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aureole.errors import InvalidInputError
from aureole.sphere._positivity import log_positivity

_TOLERANCE = {torch.float32: 1e-6, torch.float64: 3e-9}
_FEW = 2_048  # pairs below which each is computed by itself: a table costs about as many
_RENTED = 32_768  # pairs without gradients that are computed by themselves before a table is built for them
_MOST = 256  # degrees
_POS_NODES = 12  # over a range of kappa_pos of a factor 1.5
_BLOCK = 2**17  # entries of a matrix at a time: their few arrays stay in the cache
_DROPPED = 1e-25  # gradients below this share of one are 0: products with them would be subnormal
_PAIRS = 8_192  # listed pairs at a time
_KEPT = 16  # tables
_STEPS_UNREAD = 100  # on an accelerator, calls between two looks at the box
_READ_FREELY = ("cpu",)  # devices whose values are read without waiting for them


@dataclass(frozen=True)
class Box:
    """The cosines from ``low`` to 1 and the concentrations from ``least`` to ``most`` that a table covers."""

    low: float
    least: float
    most: float

    def covers(self, other: "Box") -> bool:
        return self.low <= other.low and self.least <= other.least and other.most <= self.most

    def widened(self, other: "Box | None" = None) -> "Box":
        """Return a box around both with room to grow: cosines in eighths, concentrations in powers of two."""
        boxes = [self] if other is None else [self, other]
        low = min(box.low for box in boxes)
        least, most = min(box.least for box in boxes), max(box.most for box in boxes)
        return Box(
            max(-1.0, math.floor(8 * low - 0.5) / 8),
            2.0 ** math.floor(math.log2(least) - 0.5) if least > 0 else 0.0,
            2.0 ** math.ceil(math.log2(most) + 0.5) if 0 < most < math.inf else max(most, 1.0),
        )


class PositivityTable:
    """The Chebyshev coefficients of log positivity over a box, for one dimension and one or a range of kappa_pos."""

    def __init__(
        self, dim: int, kappa_pos: tuple[float, float], box: Box, tolerance: float
    ) -> None:
        self.dim, self.box, self.tolerance = dim, box, tolerance
        self.ends_pos = kappa_pos
        self.offset = max(kappa_pos[1], (dim - 1) / 2)
        self.ends_u = (1 / (box.most + self.offset), 1 / (box.least + self.offset))
        self.shift = shift_of(dim, box.most, kappa_pos[1])
        n_cosine, n_kappa = self._degree_of_cosine(), self._degree_of_kappa()
        n_pos = 1 if kappa_pos[0] == kappa_pos[1] else _POS_NODES
        self.coefficients = self._interpolate(n_cosine, n_kappa, n_pos)
        self._forms: dict[Any, _Form] = {}

    def form(self, kappa_pos: float, device: torch.device) -> "_Form":
        """Return the coefficients at a kappa_pos, cut to their ranks, on a device; the last one is cached."""
        key = (kappa_pos, device)
        if key not in self._forms:
            low, high = self.ends_pos
            n, slope = len(self.coefficients), None
            place = 0.0 if low == high else (2 * kappa_pos - (low + high)) / (high - low)
            terms = chebyshev(torch.tensor(place, dtype=torch.float64), n)
            value = torch.tensordot(terms, self.coefficients, 1)
            if n > 1:
                slope = terms @ derivative(n) * (2 / (high - low))
                slope = torch.tensordot(slope, self.coefficients, 1)
            self._forms = {key: _Form.of(value, slope, self.tolerance, device)}
        return self._forms[key]

    def x_of(self, cosine: Tensor) -> Tensor:
        """Return the place of cosines in [-1, 1] of the polynomials; differentiable."""
        middle, half = self._cosine_scale()
        return (torch.sqrt(cosine + (1 + self.shift)) - middle) / half

    def x_slope(self, cosine: Tensor) -> Tensor:
        """Return the derivative of ``x_of``."""
        return torch.rsqrt(cosine + (1 + self.shift)).mul_(0.5 / self._cosine_scale()[1])

    def y_of(self, kappa: Tensor) -> Tensor:
        """Return the place of concentrations in [-1, 1] of the polynomials, in float64."""
        low, high = self.ends_u
        return (2 / (kappa.double() + self.offset) - (low + high)) / (high - low)

    def y_slope(self, kappa: Tensor) -> Tensor:
        """Return the derivative of ``y_of``."""
        low, high = self.ends_u
        return -2 / ((kappa.double() + self.offset).square() * (high - low))

    def _cosine_scale(self) -> tuple[float, float]:
        """Return the middle and half the length of the box in the variable of the cosine."""
        low, high = math.sqrt(self.shift + 1 + self.box.low), math.sqrt(self.shift + 2)
        return (low + high) / 2, (high - low) / 2

    def _cosines(self, count: int) -> Tensor:
        middle, half = self._cosine_scale()
        return ((middle + half * nodes(count)).square() - self.shift - 1).clamp(-1, 1)

    def _kappas(self, count: int) -> Tensor:
        low, high = self.ends_u
        return (1 / ((low + high) / 2 + (high - low) / 2 * nodes(count)) - self.offset).clamp(min=0)

    @torch.no_grad()
    def _exact(self, cosine: Tensor, kappa1: Tensor, kappa2: Tensor, kappa_pos: Any) -> Tensor:
        """Return exact values, some thousand at a time."""
        parts = torch.broadcast_tensors(
            cosine, kappa1, kappa2, torch.as_tensor(kappa_pos, dtype=torch.float64)
        )
        pieces = zip(*(part.reshape(-1).split(_PAIRS) for part in parts), strict=True)
        found = [log_positivity(c, k1, k2, pos, self.dim) for c, k1, k2, pos in pieces]
        return torch.cat(found).view(parts[0].shape)

    def _samples(self) -> Tensor:
        """Return concentrations from end to end of the box: f is simplest at its ends and hardest between them."""
        ends = torch.tensor([self.box.least, self.box.most], dtype=torch.float64)
        return torch.cat([ends, self._kappas(6)])

    def _degree_of_cosine(self) -> int:
        """Return how many polynomials of the cosine matter, for equal concentrations and for the ends of the box."""
        kappa = self._samples()
        one, two = torch.cat([kappa, kappa[:1]]), torch.cat([kappa, kappa[1:2]])
        pos = self.ends_pos[1]
        return self._degree(lambda n: self._exact(self._cosines(n)[:, None], one, two, pos))

    def _degree_of_kappa(self) -> int:
        """Return how many polynomials of one concentration matter, for some of the other and of the cosine."""
        cosines = torch.tensor([self.box.low, (self.box.low + 1) / 2, 1.0], dtype=torch.float64)
        other, pos = self._samples()[:, None], self.ends_pos[1]
        return self._degree(
            lambda n: self._exact(cosines, self._kappas(n)[:, None, None], other, pos).flatten(1)
        )

    def _degree(self, values: Callable[[int], Tensor]) -> int:
        """Return the number of coefficients after which the sum of all others is below the tolerance."""
        for count in (16, 32, 64, 128, _MOST):
            tail = (projection(count) @ values(count)).abs().flip(0).cumsum(0).flip(0).amax(1)
            needed = int((tail > self.tolerance / 3).sum())
            if needed < count - 2:
                return max(2, needed)
        raise InvalidInputError(
            f"log positivity of D = {self.dim}, kappa_pos = {self.ends_pos[1]:g} needs more than {_MOST} "
            f"polynomials over cosines from {self.box.low:g} and kappas from {self.box.least:g} to "
            f"{self.box.most:g}: bound the range of kappa."
        )

    def _interpolate(self, n_cosine: int, n_kappa: int, n_pos: int) -> Tensor:
        """Return the coefficients [kappa_pos, cosine, kappa, kappa] from the values at the nodes."""
        low, high = self.ends_pos
        kappa_pos = (low + high) / 2 + (high - low) / 2 * nodes(n_pos)
        kappa = self._kappas(n_kappa)
        i, j = torch.triu_indices(n_kappa, n_kappa)
        half = self._exact(
            self._cosines(n_cosine)[:, None], kappa[i], kappa[j], kappa_pos[:, None, None]
        )
        full = half.new_empty(n_pos, n_cosine, n_kappa, n_kappa)
        full[..., i, j] = full[..., j, i] = half
        for count in full.shape:  # each product turns the axes by one
            full = torch.tensordot(full, projection(count), dims=([0], [1]))  # pyright: ignore[reportArgumentType]
        return full


@dataclass(frozen=True)
class _Factors:
    """A matrix of coefficients in both kappas for each degree, as factors [R, S] with the columns of all degrees."""

    left: Tensor
    right: Tensor
    sizes: tuple[int, ...]  # the columns of each degree
    degree: Tensor  # of each column

    @staticmethod
    def of(matrices: Tensor, tolerance: float, device: torch.device) -> "_Factors":
        pairs = low_rank(matrices, tolerance)
        sizes = tuple(a.shape[1] for a, _ in pairs)
        degree = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        left, right = (torch.cat(parts, 1).to(device) for parts in zip(*pairs, strict=True))
        return _Factors(left, right, sizes, degree.to(device))

    def split(self, columns: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of each degree."""
        return columns.split(self.sizes, 1)


@dataclass(frozen=True)
class _Form:
    """The coefficients at one kappa_pos, cut to the ranks of f, of its slope in x, and of that in kappa_pos."""

    value: _Factors
    slope: _Factors
    pos: _Factors | None
    derivative_x: Tensor
    derivative_y: Tensor

    @staticmethod
    def of(value: Tensor, pos: Tensor | None, tolerance: float, device: torch.device) -> "_Form":
        each = tolerance / len(value) / 3
        d_x, d_y = derivative(value.shape[0]), derivative(value.shape[1])
        return _Form(
            _Factors.of(value, each, device),
            _Factors.of(torch.tensordot(d_x, value, 1)[:-1], 20 * each, device),
            None if pos is None else _Factors.of(pos, 20 * each, device),
            d_x.to(device),
            d_y.to(device),
        )

    def bases(self, table: PositivityTable, kappas: Sequence[Tensor]) -> tuple[list[Tensor], ...]:
        """Return the polynomials of each kappa, and their derivatives."""
        bases = [chebyshev(table.y_of(kappa), len(self.derivative_y)) for kappa in kappas]
        slopes = [
            basis @ self.derivative_y * table.y_slope(kappa).unsqueeze(-1)
            for basis, kappa in zip(bases, kappas, strict=True)
        ]
        return bases, slopes


class _LogEach(torch.autograd.Function):
    """Listed pairs: value and derivatives in one pass, so that the backward pass is elementwise."""

    @staticmethod
    def forward(
        ctx: Any,
        cosine: Tensor,
        kappa1: Tensor,
        kappa2: Tensor,
        kappa_pos: Tensor,  # noqa: ARG004
        table: PositivityTable,
        known: float,
    ) -> Tensor:
        form = table.form(known, cosine.device)
        parts = [
            _each_of(table, form, c.double(), k1, k2)
            for c, k1, k2 in zip(*(x.split(_PAIRS) for x in (cosine, kappa1, kappa2)), strict=True)
        ]
        value, *slopes = torch.cat(parts, 1)
        ctx.save_for_backward(*slopes)
        ctx.dtypes = [x.dtype for x in (cosine, kappa1, kappa2)]
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.saved_tensors
        found = [
            (grads[0] * slope).to(dtype) for slope, dtype in zip(slopes, ctx.dtypes, strict=False)
        ]
        pos = (grads[0] * slopes[3]).sum() if ctx.needs_input_grad[3] else None
        return *found, pos, None, None


def _each_of(
    table: PositivityTable, form: _Form, cosine: Tensor, kappa1: Tensor, kappa2: Tensor
) -> Tensor:
    """Return the values and derivatives [4 or 5, n] of listed pairs."""
    value = form.value
    terms = chebyshev(table.x_of(cosine), len(value.sizes))
    d_terms = terms @ form.derivative_x * table.x_slope(cosine).unsqueeze(-1)
    (one, two), (d_one, d_two) = form.bases(table, (kappa1, kappa2))
    left, right, t = one @ value.left, two @ value.right, terms[:, value.degree]
    both = left * right
    rows = [
        (t * both).sum(-1),
        (d_terms[:, value.degree] * both).sum(-1),
        (t * (d_one @ value.left) * right).sum(-1),
        (t * left * (d_two @ value.right)).sum(-1),
    ]
    if form.pos is not None:
        left, right = one @ form.pos.left, two @ form.pos.right
        rows.append((terms[:, form.pos.degree] * left * right).sum(-1))
    return torch.stack(rows)


class _LogMatrix(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        cosine: Tensor,
        kappa1: Tensor,
        kappa2: Tensor,
        kappa_pos: Tensor,
        table: PositivityTable,
        known: float,
    ) -> Tensor:
        form = table.form(known, cosine.device)
        bases, slopes = form.bases(table, (kappa1, kappa2))
        ctx.save_for_backward(cosine, kappa1, kappa2, kappa_pos, *bases, *slopes)
        ctx.table, ctx.form = table, form
        one, two = _sides(form.value, bases, cosine.dtype)
        found = torch.empty_like(cosine)
        for rows in _blocks(cosine):
            found[rows] = _of_rows(form.value, table.x_of(cosine[rows]), one[rows], two)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        cosine, kappa1, kappa2, kappa_pos, *bases = ctx.saved_tensors
        bases, slopes = bases[:2], bases[2:]
        table, form, grad = ctx.table, ctx.form, grads[0]
        one, two = _sides(form.value, bases, cosine.dtype)
        along = _sides(form.slope, bases, cosine.dtype)
        pos = _sides(form.pos, bases, cosine.dtype) if ctx.needs_input_grad[3] else None
        grad_cosine, grad_pos = torch.empty_like(cosine), torch.zeros_like(kappa_pos)
        # the gradient times the polynomials of the cosine, times the factors of the other side
        per_row, per_column = torch.empty_like(one), torch.zeros_like(two)
        for rows in _blocks(cosine):
            c, g = cosine[rows], grad[rows]
            g = g.masked_fill(g.abs() < _DROPPED, 0.0)
            x = table.x_of(c)
            out = _of_rows(form.slope, x, along[0][rows], along[1])
            grad_cosine[rows] = out.mul_(g).mul_(table.x_slope(c))
            if pos is not None:
                out = _of_rows(form.pos, x, pos[0][rows], pos[1]).mul_(g)
                grad_pos += out.sum(dtype=grad_pos.dtype)
            _project(form.value, x, g, (one[rows], two), (per_row[rows], per_column))
        grad1 = (per_row * (slopes[0] @ form.value.left)).sum(1).to(kappa1.dtype)
        grad2 = (per_column * (slopes[1] @ form.value.right)).sum(1).to(kappa2.dtype)
        return grad_cosine, grad1, grad2, None if pos is None else grad_pos, None, None


def _sides(factors: _Factors, bases: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return the factors [n, S] and [m, S] of both sides."""
    return (bases[0] @ factors.left).to(dtype), (bases[1] @ factors.right).to(dtype)


def _of_rows(factors: _Factors, x: Tensor, one: Tensor, two: Tensor) -> Tensor:
    return clenshaw(x, factors.split(one), factors.split(two))


def _project(
    factors: _Factors,
    x: Tensor,
    grad: Tensor,
    sides: tuple[Tensor, Tensor],
    found: tuple[Tensor, Tensor],
) -> None:
    """Project T_p(x) times the gradient on the factors of the other side; add to the second of the results."""
    before, now, double = grad, grad * x, 2 * x
    parts = [factors.split(part) for part in (*sides, *found)]
    for degree, (one, two, per_row, per_column) in enumerate(zip(*parts, strict=True)):
        term = now if degree else before
        per_row.copy_(term @ two)
        per_column.addmm_(term.T, one)
        if degree:
            before, now = now, before.neg().addcmul_(double, now)


def _blocks(cosine: Tensor) -> list[slice]:
    """Return blocks of rows whose arrays fit the cache of a CPU; one block elsewhere."""
    rows, columns = cosine.shape
    step = max(1, _BLOCK // max(1, columns)) if cosine.device.type == "cpu" else max(1, rows)
    return [slice(start, start + step) for start in range(0, rows, step)]


def clenshaw(x: Tensor, one: Sequence[Tensor], two: Sequence[Tensor]) -> Tensor:
    r"""Return :math:`\sum_p T_p(x_{ij}) (A_p B_p^T)_{ij}`, with the factors A_p [n, r] and B_p [m, r]."""
    now = one[-1] @ two[-1].T
    if len(one) == 1:
        return now
    after, double = torch.zeros_like(x), 2 * x
    for degree in range(len(one) - 2, -1, -1):
        torch.addmm(after, one[degree], two[degree].T, beta=-1, out=after)
        after.addcmul_(double if degree else x, now)
        after, now = now, after
    return now


def shift_of(dim: int, kappa: float, kappa_pos: float) -> float:
    """Return ``a`` near the distance from -1 to the singular point, for concentrations up to these.

    Two posteriors cancel to a Bessel function at its first zero, about sqrt((v + 1) (v + 5)) in size for the order
    v = D/2 - 1, at c = -1 - zero^2 / (2 k k'); kappa_pos moves the point away as if one of them was blurred by it.
    """
    order = dim / 2 - 1
    blurred = 1 / (1 / kappa + 1 / kappa_pos)
    return min(1.0, max(1e-3, (order + 1) * (order + 5) / (2 * kappa * blurred)))


def nodes(count: int) -> Float[Tensor, " n"]:
    """Return the Chebyshev nodes of a degree."""
    return torch.cos(math.pi * (torch.arange(count, dtype=torch.float64) + 0.5) / count)


def chebyshev(x: Float[Tensor, "*batch"], count: int) -> Float[Tensor, "*batch n"]:
    """Return the Chebyshev polynomials of degrees 0 to count - 1.

    Examples
    --------
    >>> chebyshev(torch.tensor(0.5), 4)
    tensor([ 1.0000,  0.5000, -0.5000, -1.0000])
    """
    angle = torch.acos(x.clamp(-1, 1)).unsqueeze(-1)
    return torch.cos(angle * torch.arange(count, dtype=x.dtype, device=x.device))


def projection(count: int) -> Float[Tensor, "n n"]:
    """Return the matrix that makes coefficients of the values at the nodes."""
    share = torch.full((count, 1), 2.0 / count, dtype=torch.float64)
    share[0] /= 2
    return chebyshev(nodes(count), count).T * share


def derivative(count: int) -> Float[Tensor, "n n"]:
    """Return the matrix that makes the coefficients of the derivative of those of a function."""
    place = torch.arange(count)
    odd = (place[None] > place[:, None]) & ((place[None] - place[:, None]) % 2 == 1)
    matrix = torch.where(odd, 2.0 * place[None].double(), 0.0)
    matrix[0] /= 2
    return matrix


def low_rank(matrices: Float[Tensor, "p r r"], tolerance: float) -> list[tuple[Tensor, Tensor]]:
    """Return factors (A, B) of each matrix, with as few columns as its numerical rank."""
    u, size, v = torch.linalg.svd(matrices)
    ranks = (size > tolerance).sum(-1).clamp(min=1)
    return [
        (u[p, :, :r] * size[p, :r], v[p, :r].T.contiguous()) for p, r in enumerate(ranks.tolist())
    ]


@dataclass
class _Entry:
    """The table of a dimension and kappa_pos if one was built, how often it was used, and how often built."""

    table: PositivityTable | None = None
    calls: int = 0
    builds: int = 0
    pairs: int = 0  # that were computed by themselves


_TABLES: OrderedDict[tuple[int, float, float, float], _Entry] = OrderedDict()


@dataclass(frozen=True)
class Positivities:
    """The log positivities of a batch, by a table or, for a few pairs, each by itself.

    ``Positivities.over`` chooses by the number of pairs: that of the batch and, without gradients and a table so far,
    that of all batches, so that one evaluation at another kappa_pos builds no table. On the CPU the table covers what
    the batch holds; it is rebuilt with room to grow when the batch leaves it. On an accelerator nothing is read back
    except in every hundredth call; in between, values outside the box of the table count as those at its border.
    """

    dim: int
    kappa_pos: Tensor
    known: float  # kappa_pos as a number, which need not be read from a device
    table: PositivityTable | None

    @staticmethod
    def over(
        cosines: Sequence[Tensor],
        kappas: Sequence[Tensor],
        kappa_pos: Tensor,
        dim: int,
        known: float,
        *,
        tolerance: float | None = None,
    ) -> "Positivities":
        """Return what computes the positivities of these cosines and kappas; ``known`` is kappa_pos as a number.

        ``tolerance`` is the error of a table (default: by the dtype of the cosines).
        """
        count, on_cpu = sum(cosine.numel() for cosine in cosines), cosines[0].device.type == "cpu"
        if count < _FEW and on_cpu:
            return Positivities(dim, kappa_pos, known, None)
        low = known
        high = known
        if kappa_pos.requires_grad:
            low = 1.5 ** math.floor(math.log(known, 1.5))
            high = 1.5 * low
        if tolerance is None:
            single = any(cosine.dtype == torch.float32 for cosine in cosines)
            tolerance = _TOLERANCE[torch.float32 if single else torch.float64]
        key = (dim, low, high, tolerance)
        entry = _TABLES.setdefault(key, _Entry())
        _TABLES.move_to_end(key)
        while len(_TABLES) > _KEPT:
            _TABLES.popitem(last=False)
        if entry.table is None and on_cpu and not torch.is_grad_enabled():
            entry.pairs += count
            if entry.pairs < _RENTED:
                return Positivities(dim, kappa_pos, known, None)
        free = cosines[0].device.type in _READ_FREELY
        if entry.table is None or free or entry.calls % _STEPS_UNREAD == 0:
            box = box_of(cosines, kappas)
            if entry.table is None or not entry.table.box.covers(box):
                # training comes back to values it had; an evaluation elsewhere does not
                keeps = entry.table is not None and torch.is_grad_enabled()
                wide = box.widened(entry.table.box if keeps and entry.table else None)
                entry.table = PositivityTable(dim, (low, high), wide, tolerance)
                entry.builds += 1
        entry.calls += 1
        return Positivities(dim, kappa_pos, known, entry.table)

    def each(
        self, cosine: Float[Tensor, "*batch"], kappa1: Tensor, kappa2: Tensor
    ) -> Float[Tensor, "*batch"]:
        """Return the logs of listed pairs, in float64."""
        if self.table is None:
            return log_positivity(cosine.double(), kappa1, kappa2, self.kappa_pos, self.dim)
        parts = self._within(cosine, kappa1, kappa2)
        shape = torch.broadcast_shapes(*(part.shape for part in parts))
        flat = [part.expand(shape).reshape(-1) for part in parts]
        return _LogEach.apply(*flat, self.kappa_pos, self.table, self.known).view(shape)

    def matrix(
        self, cosine: Float[Tensor, "n m"], kappa1: Float[Tensor, " n"], kappa2: Float[Tensor, " m"]
    ) -> Float[Tensor, "n m"]:
        """Return the logs of all pairs, in the dtype of the cosines."""
        if self.table is None:
            step = max(1, _PAIRS // max(1, cosine.shape[1]))
            rows = zip(cosine.split(step), kappa1.unsqueeze(1).split(step), strict=True)
            found = [log_positivity(c, k, kappa2, self.kappa_pos, self.dim) for c, k in rows]
            return torch.cat(found)
        parts = self._within(cosine, kappa1, kappa2)
        return _LogMatrix.apply(*parts, self.kappa_pos, self.table, self.known)

    def _within(self, cosine: Tensor, kappa1: Tensor, kappa2: Tensor) -> tuple[Tensor, ...]:
        if cosine.device.type in _READ_FREELY or self.table is None:
            return cosine, kappa1, kappa2
        box = self.table.box
        kappas = (kappa.clamp(box.least, box.most) for kappa in (kappa1, kappa2))
        return cosine.clamp(min=box.low), *kappas


def log_positivity_matrix(
    cosine: Float[Tensor, "n m"],
    kappa1: Float[Tensor, " n"],
    kappa2: Float[Tensor, " m"],
    kappa_pos: Float[Tensor, ""] | float,
    dim: int,
) -> Float[Tensor, "n m"]:
    """Return ``log_positivity`` of all pairs, interpolated in a cached table from 2,048 pairs on.

    In the dtype of the cosines, with an error of 1e-6 in float32 and 3e-9 in float64, plus the rounding of the cosine
    times the slope. The first derivatives in all arguments are available. A new table takes about a second.

    Examples
    --------
    >>> log_positivity_matrix(torch.eye(2), torch.full((2,), 20.0), torch.full((2,), 30.0), 20.0, dim=10)
    tensor([[ 4.8106, -2.5503],
            [-2.5503,  4.8106]])
    """
    value = torch.as_tensor(kappa_pos, dtype=torch.float64, device=cosine.device)
    kappas = [kappa1, kappa2]
    h = Positivities.over([cosine], kappas, value, dim, float(value.detach()))
    return h.matrix(cosine, *kappas)


@torch.no_grad()
def box_of(cosines: Sequence[Tensor], kappas: Sequence[Tensor]) -> Box:
    """Return the smallest box around cosines and concentrations; reads three numbers from their device."""
    low = min(float(cosine.min()) for cosine in cosines if cosine.numel())
    ends = [kappa.aminmax() for kappa in kappas if kappa.numel()]
    least, most = min(float(a) for a, _ in ends), max(float(b) for _, b in ends)
    if math.isnan(low + sum(float(b) for _, b in ends)) or least < 0:
        raise InvalidInputError(
            "positivity needs cosines that are not NaN and concentrations of at least 0."
        )
    return Box(max(-1.0, low), least, most)
