"""What an index asks for: which rows, and what of them. As NumPy has it; reads nothing."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from ..values._arithmetic import Arithmetic


@dataclass(frozen=True)
class Selection:
    """Some rows of an array, and the index that picks from them what was asked for."""

    rows: range | np.ndarray[Any, Any]
    rest: tuple[Any, ...]


def select(index: Any, shape: Sequence[int]) -> Selection:
    """Take apart an index into an array of at least one axis.

    Raises:
      IndexError: when it is out of range, or has too many parts.
      TypeError: for JAX arrays of numbers, which may be known too late.
      ValueError: for a step of 0.
    """
    items = [_plain(item) for item in (index if isinstance(index, tuple) else (index,))]
    items = _without_ellipsis(items, shape)
    if any(isinstance(item, np.ndarray) and item.ndim == 0 for item in items):
        return Selection(range(shape[0]), tuple(items))  # True and False, which add an axis
    rows: range | np.ndarray[Any, Any] = range(shape[0])
    rest: list[Any] = []
    axis = 0
    for item in items:
        if item is None:
            rest.append(None)
            continue
        for number, part in enumerate(_parts(item, shape[axis : axis + _axes(item)], axis)):
            if axis == 0 and number == 0:
                rows, part = _of_rows(part)
            rest.append(part)
        axis += _axes(item)
    return Selection(rows, tuple(rest))


def _plain(item: Any) -> Any:
    """Return an index in one of few forms: None, ..., an int, a slice, or a NumPy array."""
    if item is None or item is Ellipsis:
        return item
    if isinstance(item, slice):
        for bound in (item.start, item.stop, item.step):
            _refuse_arrays(bound)
        return item
    if isinstance(item, (bool, np.bool_)):
        return np.asarray(item)
    if isinstance(item, (list, np.ndarray, jax.Array, Arithmetic)):
        if getattr(item, "dtype", None) != np.bool_ or isinstance(item, Tracer):
            _refuse_arrays(item)
        array = np.asarray(item)
        if not array.size and isinstance(item, list):
            array = array.astype(np.intp)
        if array.dtype != np.bool_ and not np.issubdtype(array.dtype, np.integer):
            raise IndexError(f"An index consists of whole numbers or bools, got {item!r}.")
        return array if array.ndim or array.dtype == np.bool_ else int(array)
    try:
        return operator.index(item)
    except TypeError:
        raise IndexError(
            "An index consists of whole numbers, slices, ..., None and arrays of bools, got "
            f"{item!r}."
        ) from None


def _refuse_arrays(value: Any) -> None:
    if isinstance(value, (jax.Array, Arithmetic)):
        raise TypeError(
            f"A ShardedVariable cannot be indexed by a jax.Array, got {value!r}: which shards are "
            "needed has to be known at once. For rows use jt.nn.embedding_lookup(variable, ids); "
            "for one number, int(index); for parts of the whole, variable.value()[index]."
        )


def _axes(item: Any) -> int:
    """Return how many axes an item is for."""
    if item is None:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == np.bool_ else 1


def _without_ellipsis(items: list[Any], shape: Sequence[int]) -> list[Any]:
    places = [place for place, item in enumerate(items) if item is Ellipsis]
    used = sum(_axes(item) for item in items if item is not Ellipsis)
    if len(places) > 1 or used > len(shape):
        raise IndexError(
            f"The index has {len(places)} '...' and is for {used} axes, and the variable has "
            f"shape {tuple(shape)}."
        )
    if not places:
        return items
    [place] = places
    return [*items[:place], *[slice(None)] * (len(shape) - used), *items[place + 1 :]]


def _parts(item: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    """Return an index for each of the axes an item is for, with nothing out of range."""
    if isinstance(item, slice):
        return [item if axis else range(*item.indices(sizes[0]))]
    if isinstance(item, int):
        return [int(_in_range(np.asarray(item), sizes[0], axis))]
    if item.dtype != np.bool_:
        return [_in_range(item, sizes[0], axis)]
    if item.shape != tuple(sizes):
        raise IndexError(
            f"A mask of shape {item.shape} does not fit the axes of sizes {tuple(sizes)} that it "
            "is for."
        )
    return list(item.nonzero())


def _in_range(index: np.ndarray[Any, Any], size: int, axis: int) -> np.ndarray[Any, Any]:
    wrong = (index < -size) | (index >= size)
    if wrong.any():
        raise IndexError(
            f"The index {index[wrong].ravel()[0]} is out of range for axis {axis}, whose size is "
            f"{size}."
        )
    return np.where(index < 0, index + size, index)


def _of_rows(part: Any) -> tuple[range | np.ndarray[Any, Any], Any]:
    """Return the rows that are needed, and what to ask an array of these for."""
    if isinstance(part, range):
        return part, slice(None)
    if isinstance(part, int):
        return range(part, part + 1), 0
    return part.ravel(), np.arange(part.size).reshape(part.shape)
