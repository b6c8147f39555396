"""Whole numbers of the host that JAX has no room for.

JAX has whole numbers of 32 bits unless it is told otherwise, and cuts off larger ones of NumPy
without a word: the id 2**33 + 1 would become 1. Numbers are looked at where they enter, in the
host's memory; arrays of JAX have lost nothing since.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .errors import InvalidArgumentError


def check_fits(value: Any, what: str) -> None:
    """Refuse an array of NumPy whose whole numbers JAX would cut off.

    Args:
      value: anything; only arrays and scalars of NumPy with integers of 64 bits are looked at.
      what: who was given it, for messages.

    Raises:
      InvalidArgumentError: naming a number that does not fit.
    """
    if not isinstance(value, (np.ndarray, np.generic)):
        return
    dtype = value.dtype
    if dtype.kind in "iu" and dtype.itemsize == 8:
        check_within(value, jax.dtypes.canonicalize_dtype(dtype), what)


def check_within(value: np.ndarray[Any, Any] | np.generic, dtype: Any, what: str) -> None:
    """Refuse integers that another type of integers has no room for.

    Raises:
      InvalidArgumentError: naming one.
    """
    if not value.size or np.can_cast(value.dtype, dtype):
        return
    limits = jnp.iinfo(dtype)
    smallest, largest = int(value.min()), int(value.max())
    if limits.min <= smallest and largest <= limits.max:
        return
    wrong = largest if largest > limits.max else smallest
    lacks_room = dtype != value.dtype and dtype == jax.dtypes.canonicalize_dtype(value.dtype)
    raise InvalidArgumentError(
        f"{what} was given {wrong}, of type {value.dtype}, which does not fit into {dtype} and "
        "would be cut off. Make the numbers smaller in NumPy first, such as ids % rows for hashed "
        f"ids{', or let JAX have integers of 64 bits: JAX_ENABLE_X64=1' if lacks_room else ''}."
    )


def asarray(value: Any, what: str) -> jax.Array:
    """Return an array of JAX, like `jnp.asarray`, which loses nothing of whole numbers.

    Raises:
      InvalidArgumentError: when JAX has no room for them.
    """
    check_fits(value, what)
    return jnp.asarray(value)
