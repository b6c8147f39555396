"""What arrays of the host hold that those of JAX cannot: wide whole numbers, and text.

JAX has whole numbers of 32 bits unless it is told otherwise, and cuts off larger ones of NumPy
without a word: the id 2**33 + 1 would become 1. Of text it says that it is no abstract array.
Arrays are looked at where they enter, in the host's memory; those of JAX have lost nothing since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from .errors import InvalidArgumentError

_NO_NUMBERS = "OSUTMm"  # objects, bytes, texts, dates and times, as NumPy calls kinds of types


def is_text(value: Any) -> bool:
    """Tell whether an array or scalar of NumPy holds text or other objects instead of numbers."""
    return isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in _NO_NUMBERS


def check_numeric(value: Any, what: str) -> None:
    """Refuse text, and arrays and lists of it.

    Args:
      value: anything.
      what: who was given it, for messages.

    Raises:
      TypeError: when it is text, or an array of anything but numbers.
    """
    if is_text(value):
        kind = "dates or times" if value.dtype.kind in "Mm" else "text or other objects"
        described = f"an array of {kind} (dtype {value.dtype})"
    elif isinstance(value, (str, bytes)):
        described = f"the text {value[:40]!r}"
    else:
        if isinstance(value, (list, tuple)):
            for each in cast("Sequence[Any]", value):
                check_numeric(each, what)
        return
    raise TypeError(
        f"{what} was given {described}, and devices hold numbers only. Turn text into ids before, "
        "on the host, such as in the `map` of the dataset."
    )


def check_fits(value: Any, what: str) -> None:
    """Refuse an array of NumPy that JAX cannot hold, or whose whole numbers it would cut off.

    Args:
      value: anything; only arrays and scalars of NumPy are looked at.
      what: who was given it, for messages.

    Raises:
      InvalidArgumentError: naming a number that does not fit.
      TypeError: when it holds no numbers.
    """
    if not isinstance(value, (np.ndarray, np.generic)):
        return
    check_numeric(value, what)
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
      TypeError: when it is text.
    """
    check_numeric(value, what)
    check_fits(value, what)
    return jnp.asarray(value)
