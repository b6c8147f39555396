"""Changes of one variable that need no optimizer, and what each kind of change may be given.

Rows with the same index are put together first, so that each row is changed once; of rows to put
in place, the last one counts. What comes out is what the JAX form in `variables/_scatter.py` gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..errors import InvalidArgumentError
from ._cell import Array, Cell, Change, replaced, rows_replaced

Combine = Callable[..., Any]


def is_integer(dtype: np.dtype[Any]) -> bool:
    """Tell whether a type is of integers, also of those that NumPy itself does not know."""
    return jnp.issubdtype(dtype, np.integer)


def _divide(dividend: Array, divisor: Array) -> Array:
    if not is_integer(dividend.dtype):
        return dividend / divisor
    quotient = dividend // divisor
    # Towards zero, as on workers and in TensorFlow, where NumPy goes down.
    goes_down = (quotient * divisor != dividend) & ((dividend < 0) != (divisor < 0))
    return (quotient + goes_down).astype(dividend.dtype)


_DENSE: dict[str, Combine | None] = {"assign": None, "add": np.add, "sub": np.subtract}

# How rows with the same index are put together, and how the result changes the row.
_SPARSE: dict[str, tuple[np.ufunc | None, Combine | None]] = {
    "scatter_add": (np.add, np.add),
    "scatter_sub": (np.add, np.subtract),
    "scatter_mul": (np.multiply, np.multiply),
    "scatter_div": (np.multiply, _divide),
    "scatter_min": (np.minimum, np.minimum),
    "scatter_max": (np.maximum, np.maximum),
    "scatter_update": (None, None),
}
_FOR_BOOL = {"assign", "scatter_update"}


def check(cell: Cell, kind: str, arrays: list[Array]) -> None:
    """Refuse what cannot be carried out.

    Raises:
      InvalidArgumentError: when the kind is unknown, or the arrays do not fit the variable.
    """
    known = [*_DENSE, *_SPARSE, "apply"]
    if kind not in known:
        raise InvalidArgumentError(
            f"{kind!r} is no change of a variable; there are {', '.join(known)}."
        )
    sparse = kind in _SPARSE or (kind == "apply" and len(arrays) == 2)
    expected = 2 if sparse else 1
    if len(arrays) != expected:
        raise InvalidArgumentError(
            f"{kind!r} of {cell.name!r} takes {expected} array(s), got {len(arrays)}."
        )
    if sparse:
        check_indices(cell, arrays[1])
    shape = (len(arrays[1]), *cell.shape[1:]) if sparse else cell.shape
    if arrays[0].shape != shape or arrays[0].dtype != cell.dtype:
        raise InvalidArgumentError(
            f"{kind!r} was given {_described(arrays[0])} for {cell.name!r}, which is of shape "
            f"{cell.shape} and type {cell.dtype}; it takes shape {shape} of the same type."
        )
    if cell.dtype == bool and kind not in _FOR_BOOL:
        raise InvalidArgumentError(
            f"{kind!r} does not work on {cell.name!r}, which is of type bool; assign to it."
        )
    if kind == "scatter_div" and is_integer(cell.dtype) and not arrays[0].all():
        raise InvalidArgumentError(f"Rows of {cell.name!r} cannot be divided by integer zeros.")


def check_indices(cell: Cell, indices: Array) -> None:
    """Refuse indices of rows that a variable does not have.

    Raises:
      InvalidArgumentError: when they are no int64 vector, or point outside the variable.
    """
    if not cell.shape:
        raise InvalidArgumentError(f"{cell.name!r} is a scalar and has no rows.")
    if indices.ndim != 1 or indices.dtype != np.int64:
        raise InvalidArgumentError(
            f"Indices of rows of {cell.name!r} are a vector of int64, got {_described(indices)}."
        )
    if len(indices) and not 0 <= indices.min() <= indices.max() < cell.shape[0]:
        wrong = indices[(indices < 0) | (indices >= cell.shape[0])][0]
        raise InvalidArgumentError(
            f"Row {wrong} of {cell.name!r} was asked for, which has rows 0 to {cell.shape[0] - 1}."
            if cell.shape[0]
            else f"Row {wrong} of {cell.name!r} was asked for, which has no rows."
        )


def carry_out(cell: Cell, kind: str, arrays: list[Array]) -> Change:
    """Change a variable by arrays that `check` found to fit, and tell how to undo it."""
    with np.errstate(all="ignore"):  # what is too large becomes infinite, as on any device
        return _carried_out(cell, kind, arrays)


def _carried_out(cell: Cell, kind: str, arrays: list[Array]) -> Change:
    if kind in _DENSE:
        function = _DENSE[kind]
        if function is None:
            return replaced(cell, arrays[0])
        new = np.empty_like(arrays[0])  # without it, scalars would stop being arrays
        function(cell.peek(), arrays[0], out=new)
        return replaced(cell, new)
    put_together, change = _SPARSE[kind]
    if kind == "scatter_div" and is_integer(cell.dtype):
        return _divided_in_turn(cell, arrays[0], arrays[1])
    rows, indices = without_duplicates(arrays[0], arrays[1], put_together)
    old = cell.rows(indices)
    new = rows if change is None else change(old, rows)
    return rows_replaced(cell, indices, old, new)


def _divided_in_turn(cell: Cell, divisors: Array, indices: Array) -> Change:
    """Divide by one divisor of a row after the other: their product might not fit the type."""
    order = np.argsort(indices, kind="stable")
    distinct, starts, counts = np.unique(indices[order], return_index=True, return_counts=True)
    old = cell.rows(distinct)
    new = old.copy()
    for turn in range(counts.max(initial=0)):
        [rows] = (counts > turn).nonzero()
        new[rows] = _divide(new[rows], divisors[order[starts[rows] + turn]])
    return rows_replaced(cell, distinct, old, new)


def without_duplicates(
    rows: Array, indices: Array, put_together: np.ufunc | None
) -> tuple[Array, Array]:
    """Return rows and increasing indices, where rows of the same index became one."""
    if (indices[1:] > indices[:-1]).all():
        return rows, indices
    order = np.argsort(indices, kind="stable")
    ordered = indices[order]
    is_first = np.concatenate(([True], ordered[1:] > ordered[:-1]))
    starts = np.flatnonzero(is_first)
    if len(starts) == len(indices):
        return rows[order], ordered
    if put_together is None:
        lasts = np.append(starts[1:], len(indices)) - 1
        return rows[order[lasts]], ordered[starts]
    # NumPy would add up small integers as large ones.
    joined = put_together.reduceat(rows[order], starts, axis=0, dtype=rows.dtype)
    return joined, ordered[starts]


def _described(array: Array) -> str:
    return f"an array of shape {array.shape} and type {array.dtype}"
