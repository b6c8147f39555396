"""Making what is assigned fit the variable it is assigned to."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._ids import numbered
from .._jax_compat import is_tracing
from .._wide import check_numeric, check_within
from ..errors import TracerLeakError
from ..values import IndexedSlices
from ..values._arithmetic import operand
from ._copies import as_own_array

_KINDS = (jnp.bool_, jnp.integer, jnp.floating, jnp.complexfloating)


def matching(variable: Any, value: Any) -> Any:
    """Return `value` as an array of the variable's type and shape.

    Raises:
      ValueError: when it has another shape, or its type would lose information.
    """
    if isinstance(value, Tracer) and not is_tracing():
        raise TracerLeakError.kept(f"The variable {variable.name!r}")
    if isinstance(value, IndexedSlices):
        values = matching_type(variable, value.values)
        return IndexedSlices(values, numbered(value.indices), value.dense_shape)
    array = matching_type(variable, value)
    if array.shape != variable.shape:
        raise ValueError(
            f"The variable {variable.name!r} has shape {variable.shape} and cannot be assigned a "
            f"value of shape {array.shape}. Use jnp.broadcast_to or jnp.reshape first."
        )
    return array


def matching_type(variable: Any, value: Any) -> jax.Array:
    """Return `value` as an array of the variable's type."""
    value = operand(value)
    if not hasattr(value, "dtype"):
        holds_arrays = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(value))
        value = jnp.asarray(value) if holds_arrays else np.asarray(value)
    check_numeric(value, f"The variable {variable.name!r}")
    given = value.dtype
    if _kind(given) > _kind(variable.dtype):
        raise ValueError(
            f"The variable {variable.name!r} has dtype {variable.dtype} and cannot be assigned a "
            f"value of dtype {given}, which would lose information. Convert it first: "
            f"value.astype({str(variable.dtype)!r})."
        )
    if isinstance(value, (np.ndarray, np.generic)) and _kind(given) == _kind(variable.dtype) == 1:
        check_within(value, variable.dtype, f"The variable {variable.name!r}")
    if not isinstance(value, np.ndarray) or is_tracing():
        return jnp.array(value, dtype=variable.dtype, copy=isinstance(value, np.ndarray))
    # A copy: JAX may keep a NumPy array's own memory, which its owner may change later.
    return as_own_array(value, variable.dtype)


def _kind(dtype: Any) -> int:
    for index, kind in enumerate(_KINDS):
        if jnp.issubdtype(dtype, kind):
            return index
    return len(_KINDS)
