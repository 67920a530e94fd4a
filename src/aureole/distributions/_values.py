"""Posteriors as values: length, indexing, devices, concatenation, collation, saving, and tables.

A distribution names its tensors in ``_parts``; each starts with the dimensions of the batch, so what works on the batch
works on every part. Nothing here imports a table library before it is used.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.utils.data._utils.collate import default_collate_fn_map

from aureole.errors import InvalidInputError, MissingPackageError

Kind = TypeVar("Kind", bound=type)
Value = TypeVar("Value", bound="BatchValue")
_JOINED = {torch.cat: "cat", torch.concat: "cat", torch.concatenate: "cat", torch.stack: "stack"}
_KINDS: dict[str, Any] = {}  # the distributions of this package by name, for pickles


class BatchValue(Distribution):
    """What batches of distributions share with tensors; a subclass gives its parts, and itself from parts."""

    def _parts(self) -> dict[str, Tensor]:
        """The tensors by name, each ``[*batch, ...]``."""
        raise NotImplementedError

    def _batch(self) -> Tensor:
        """A tensor ``[*batch]`` of their dtype and on their device."""
        raise NotImplementedError

    def _from_parts(self: Value, parts: dict[str, Tensor]) -> Value:
        """The same kind of distribution with other parts, which are not checked."""
        raise NotImplementedError

    def _map(self: Value, function: Callable[[Tensor], Tensor]) -> Value:
        return self._from_parts({name: function(part) for name, part in self._parts().items()})

    @property
    def shape(self) -> torch.Size:
        """The batch shape."""
        return self.batch_shape

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the parameters."""
        return self._batch().dtype

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self._batch().device

    def __len__(self) -> int:
        if not self.batch_shape:
            raise TypeError(f"a single {type(self).__name__} has no length")
        return self.batch_shape[0]

    def __getitem__(self: Value, index: Any) -> Value:
        """Some of the distributions, by integers, slices, masks, index tensors, lists, None and ``...``."""
        parts = index if isinstance(index, tuple) else (index,)
        parts = tuple(torch.from_numpy(i) if isinstance(i, np.ndarray) else i for i in parts)
        self._batch()[parts]  # an error here is about the batch, not about the dimensions after it

        def pick(part: Tensor) -> Tensor:
            rest = (slice(None),) * (part.dim() - len(self.batch_shape))
            return part[(*parts, *rest)] if any(i is ... for i in parts) else part[parts]

        return self._map(pick)

    def __iter__(self: Value) -> Iterator[Value]:
        rows = range(len(self))  # an error for a single one, before the first item
        return (self[row] for row in rows)

    def to(self: Value, *arguments: Any, **options: Any) -> Value:
        """The same on another device or in another dtype; arguments as for ``Tensor.to``, or another posterior."""
        arguments = tuple(a._batch() if isinstance(a, BatchValue) else a for a in arguments)
        dtype = self._batch().new_empty(0).to(*arguments, **options).dtype
        if dtype not in (torch.float32, torch.float64):
            raise InvalidInputError(
                f"{type(self).__name__} has float32 or float64 parameters, not {dtype}."
            )
        return self._map(lambda part: part.to(*arguments, **options))

    def cpu(self: Value) -> Value:
        """The same on the CPU."""
        return self.to("cpu")

    def cuda(self: Value, device: Any = None) -> Value:
        """The same on a CUDA device."""
        return self._map(lambda part: part.cuda(device))

    def pin_memory(self: Value) -> Value:
        """The same in pinned memory; DataLoader calls this with ``pin_memory=True``."""
        return self._map(lambda part: part.pin_memory())

    def detach(self: Value) -> Value:
        """The same without gradients."""
        return self._map(lambda part: part.detach())

    def _columns(self) -> dict[str, Tensor]:
        """The parts by the names that tables use."""
        return self._parts()

    def numpy(self) -> dict[str, np.ndarray]:
        """The parameters as arrays by name; they must not need gradients (``detach``)."""
        return {name: part.numpy() for name, part in self._columns().items()}

    def to_dict(self) -> dict[str, Any]:
        """The parameters as numbers and lists of numbers by name, for JSON."""
        return {name: part.tolist() for name, part in self._columns().items()}

    def to_arrow(self) -> Any:
        """Return a pyarrow table with one row for each distribution of a batch (n,) and the columns of ``numpy``."""
        try:
            import pyarrow
        except ImportError as error:
            raise MissingPackageError(
                "this table needs pyarrow: pip install 'aureole[search]'."
            ) from error
        if len(self.batch_shape) != 1:
            raise InvalidInputError(
                f"a table has one row for each distribution of a batch (n,), but the batch shape is "
                f"{tuple(self.batch_shape)}."
            )
        columns = self.detach().cpu().numpy()
        return pyarrow.table({name: _arrow(pyarrow, x) for name, x in columns.items()})

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        """``torch.cat`` and ``torch.stack``, and no other function of torch."""
        if function not in _JOINED:
            return NotImplemented
        return _join(function, *arguments, **(options or {}))

    def _state(self) -> dict[str, Any]:
        return {**self._parts(), "validate_args": self._validate_args}

    def __reduce_ex__(self, protocol: Any) -> Any:
        known = _KINDS.get(type(self).__name__)
        if known is None or known.__module__ != type(self).__module__:  # a subclass of yours
            return super().__reduce_ex__(protocol)
        return from_state, (type(self).__name__, self._state())


def loadable(cls: Kind) -> Kind:
    """The class itself; pickles and files of ``torch.save`` name it by its name alone."""
    _KINDS.setdefault(cls.__name__, cls)
    return cls


def from_state(kind: str, state: dict[str, Any]) -> BatchValue:
    """The distribution of a pickle or of a file of ``torch.save``."""
    if kind not in _KINDS:
        raise InvalidInputError(f"unknown kind of distribution {str(kind)[:50]!r}.")
    return _KINDS[kind](**state)


# the path that files contain, which must not depend on the module
from_state.__module__ = "aureole.distributions"
torch.serialization.add_safe_globals([from_state])


def cat(values: Sequence[Value], dim: int = 0) -> Value:
    """The distributions of several batches along a dimension of the batch; ``torch.cat`` calls this."""
    return _join(torch.cat, values, dim)


def stack(values: Sequence[Value], dim: int = 0) -> Value:
    """Batches of equal shape along a new dimension of the batch; ``torch.stack`` calls this."""
    return _join(torch.stack, values, dim)


def _join(
    function: Callable[..., Tensor],
    values: Sequence[Any],
    dim: int = 0,
    *,
    axis: int | None = None,
    out: Any = None,
) -> Any:
    values, dim = list(values), dim if axis is None else axis
    name = _JOINED[function]
    if not values or out is not None:
        raise InvalidInputError(f"{name} takes one posterior or more, and no out.")
    first = values[0]
    for value in values:
        if type(value) is not type(first):
            kinds = f"{type(first).__name__} and {type(value).__name__}"
            raise InvalidInputError(f"{name} takes posteriors of one kind, but got {kinds}.")
    dtype = torch.float64 if any(v.dtype == torch.float64 for v in values) else torch.float32
    batches = [(v if v.dtype == dtype else v.to(dtype))._parts() for v in values]
    n_axes = len(first.batch_shape) + (name == "stack")
    if not -n_axes <= dim < n_axes:
        raise IndexError(
            f"{name} along dimension {dim} of posteriors with batch shape {tuple(first.batch_shape)}"
        )
    try:
        joined = {
            key: function([parts[key] for parts in batches], dim % n_axes) for key in batches[0]
        }
    except RuntimeError as error:
        shapes = ", ".join(sorted({repr(value) for value in values})[:3])
        raise InvalidInputError(f"these cannot be joined by {name}: {shapes} ({error})") from error
    new = first._from_parts(joined)
    new._validate_args = any(value._validate_args for value in values)
    return new


def _collate(batch: Sequence[BatchValue], *, collate_fn_map: Any = None) -> BatchValue:
    del collate_fn_map
    return stack(batch)


default_collate_fn_map[BatchValue] = _collate


def as_tensor(values: Any, *, like: Tensor | None = None) -> Tensor:
    """A floating-point tensor of a tensor, an array, numbers or (nested) lists of them.

    Lists get torch's default dtype; arrays and tensors keep theirs, unless they are integers.

    Examples
    --------
    >>> as_tensor([[1, 0], [0, 1]]), as_tensor(np.ones(2)).dtype
    (tensor([[1., 0.], [0., 1.]]), torch.float64)
    """
    if isinstance(values, Tensor):
        return values
    device = None if like is None else like.device
    if isinstance(values, Sequence) and any(isinstance(value, Tensor) for value in values):
        return torch.stack([as_tensor(value, like=like) for value in values])
    try:
        array = np.require(values, requirements=("C", "W"))
        if array.dtype.kind not in "fiub":
            raise TypeError(f"numbers are needed, not {array.dtype}")
        if isinstance(values, np.ndarray | np.generic) and array.dtype.kind == "f":
            return torch.as_tensor(array, device=device)
        return torch.as_tensor(array, dtype=torch.get_default_dtype(), device=device)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"expected a tensor, an array or lists of equal length, but got {type(values).__name__}: {error}."
        ) from error


def kappa_range(kappa: Tensor) -> str:
    """The range of kappa in a ``repr``."""
    if kappa.is_meta:
        return "kappa on meta"
    if kappa.numel() == 0:
        return "no kappa"
    low, high = kappa.min().item(), kappa.max().item()
    return f"kappa {low:.6g}" if low == high else f"kappa in [{low:.6g}, {high:.6g}]"


def _arrow(arrow: Any, array: np.ndarray) -> Any:
    """The array [n, ...] as an Arrow array of (nested) lists of fixed size."""
    column = arrow.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        column = arrow.FixedSizeListArray.from_arrays(column, size)
    return column
