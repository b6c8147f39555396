"""Whether ids are rows of a table, also of ids that are known only when a program runs.

A program cannot raise. Where it is to be told, a callback looks at the ids and raises what is
wrong, which whoever runs the program raises afterwards.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import config
from .._ids import check_in_range
from ..errors import InvalidArgumentError
from ..values import IndexedSlices
from ..values._arithmetic import operand
from . import _frames


def checked_ids(table: Any, ids: Any) -> Any:
    """Refuse ids that are known and are no rows of a table.

    Those that are not known are looked at when the program runs, if that is switched on.

    Args:
      table: a variable, or anything else with a shape and perhaps a name.
      ids: of any shape; an array of NumPy or JAX, or a tracer.

    Returns:
      The ids.

    Raises:
      InvalidArgumentError: naming some of them.
    """
    name, rows = described(table), table.shape[0]
    if not isinstance(ids, Tracer):
        check_in_range(name, rows, np.asarray(ids))
        return ids
    if config.functions_check_ids() and _frames.current().is_guarded:
        jax.debug.callback(lambda ids: check_in_range(name, rows, np.asarray(ids)), ids)
    return ids


def described(table: Any) -> str:
    """Return how a table is called in messages."""
    name = getattr(table, "name", None)
    return "the table" if name is None else f"the variable {name!r}"


def checked_rows(variable: Any, sparse_delta: Any) -> IndexedSlices:
    """Refuse anything that is not rows of a variable.

    Returns:
      The rows, as many as there are indices, which have one axis.

    Raises:
      TypeError: when `sparse_delta` is not `IndexedSlices`, or indices are not whole numbers.
      InvalidArgumentError: when values do not fit the indices, or indices are known that the
        variable has no rows for.
    """
    if not isinstance(sparse_delta, IndexedSlices):
        raise TypeError(
            f"The rows to change in the variable {variable.name!r} must be given as "
            f"jt.IndexedSlices(values, indices), got {sparse_delta!r} of type "
            f"{type(sparse_delta).__name__}."
        )
    if not variable.shape:
        raise InvalidArgumentError(f"The variable {variable.name!r} is a scalar and has no rows.")
    indices, values = _array(sparse_delta.indices), _array(sparse_delta.values)
    if not indices.size and not isinstance(indices, jax.Array):
        indices = indices.astype(np.int32)  # an empty list
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        raise TypeError(
            f"Indices of rows of the variable {variable.name!r} must be whole numbers, got dtype "
            f"{indices.dtype}."
        )
    shape = (*indices.shape, *variable.shape[1:])
    if values.shape not in (shape, ()):
        raise InvalidArgumentError(
            f"The variable {variable.name!r} of shape {variable.shape} takes values of shape "
            f"{shape} for indices of shape {indices.shape}, got {values.shape}."
        )
    indices = checked_ids(variable, indices)
    if indices.ndim != 1 or values.shape != shape:
        numpy = jnp if isinstance(values, jax.Array) else np
        values = numpy.broadcast_to(values, shape).reshape(-1, *variable.shape[1:])
        indices = indices.reshape(-1)
    return IndexedSlices(values, indices, sparse_delta.dense_shape)


def check_divisors(variable: Any, values: Any) -> None:
    """Refuse to divide whole numbers by zeros that are known.

    Raises:
      InvalidArgumentError: when there are any.
    """
    if not jnp.issubdtype(variable.dtype, jnp.integer) or isinstance(values, Tracer):
        return
    if not np.asarray(values).all():
        raise InvalidArgumentError(
            f"Rows of the variable {variable.name!r}, which are whole numbers, cannot be divided "
            "by zeros."
        )


def _array(value: Any) -> Any:
    value = operand(value)
    return value if isinstance(value, jax.Array) else np.asarray(value)
