"""Copies that share their memory with nobody, for variables that are overwritten in place.

`jnp.copy` and `jnp.array` compile a program for each shape they meet, which takes JAX about 10 ms:
a model's worth of variables would take a second. The runtime copies without one.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer


def copied(array: jax.Array) -> jax.Array:
    """Return a copy of an array, on the same devices."""
    if isinstance(array, Tracer) or not array.is_fully_addressable:
        return jnp.copy(array)
    return jax.device_put(array, may_alias=False)


def as_own_array(value: Any, dtype: Any = None) -> jax.Array:
    """Return a value as an array that nobody else holds, of a type that is not weak.

    Called outside of traces, or under `jax.ensure_compile_time_eval`.
    """
    # JAX warns of types that it does not have.
    is_known = dtype is None or jax.dtypes.canonicalize_dtype(dtype) == dtype
    if isinstance(value, jax.Array):
        if not value.weak_type and dtype in (None, value.dtype):
            return copied(value)
    elif is_known and isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)):
        # JAX may use memory of the host as it is, so it is given a copy that nobody knows.
        return jax.device_put(np.array(value, dtype))
    array = jnp.array(value, dtype=dtype, copy=True)
    return array.astype(array.dtype)
