"""Ids of rows: those that are no rows are refused where they are known, and left out elsewhere.

JAX takes -1 for the last row, and leaves it to each operation what becomes of ids past it. Here an
id out of range never stands for another row.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._wide import asarray
from .errors import InvalidArgumentError


def check_in_range(name: str, rows: int, ids: np.ndarray[Any, Any]) -> None:
    """Refuse ids that are no rows of a table.

    Args:
      name: what the table is called in messages, such as "the variable 'v'".
      rows: how many it has.
      ids: which are asked for, of any shape.

    Raises:
      InvalidArgumentError: naming some of them.
    """
    wrong = ids[(ids < 0) | (ids >= rows)]
    if wrong.size:
        some = ", ".join(str(each) for each in np.unique(wrong)[:10])
        raise InvalidArgumentError(
            f"{name[:1].upper()}{name[1:]} has {rows} rows, numbered from 0, and was asked for "
            f"{some}."
        )


def numbered(ids: Any) -> jax.Array:
    """Return ids, known or traced, in a type in which they can be compared with numbers of rows.

    In the types of few bits a number of rows may not exist: as an int8, 1000 is -24.
    """
    ids = asarray(ids, "The index of a row")
    wide = jax.dtypes.canonicalize_dtype(np.int64)
    if ids.dtype == wide:
        return ids
    if jnp.issubdtype(ids.dtype, jnp.unsignedinteger) and ids.dtype.itemsize >= wide.itemsize:
        largest = int(jnp.iinfo(wide).max)
        ids = jnp.where(ids > jnp.asarray(largest, ids.dtype), largest, ids)
    return ids.astype(wide)


def outside(ids: Any, rows: int) -> jax.Array:
    """Tell which ids, known or traced, are no rows of a table."""
    ids = numbered(ids)
    return (ids < 0) | (ids >= rows)


def or_past_the_last(ids: Any, rows: int) -> jax.Array:
    """Return ids with one past the last row for those that are no rows, which JAX can leave out."""
    ids = numbered(ids)
    return jnp.where((ids < 0) | (ids >= rows), rows, ids)


def take(array: Any, ids: Any) -> jax.Array:
    """Return rows of an array; for ids that are no rows, NaN or what `missing` says."""
    array = jnp.asarray(array)
    if not array.shape[0]:
        return jnp.full((*jnp.shape(ids), *array.shape[1:]), missing(array.dtype), array.dtype)
    return jnp.take(array, or_past_the_last(ids, array.shape[0]), axis=0, mode="fill")


def missing(dtype: Any) -> Any:
    """Return what stands for a row that does not exist; the same as `jnp.take` returns."""
    if jnp.issubdtype(dtype, jnp.inexact):
        return np.nan
    if dtype == np.bool_:
        return True
    limits = jnp.iinfo(dtype)
    return limits.min if limits.min else limits.max
