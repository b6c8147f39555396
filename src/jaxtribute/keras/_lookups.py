"""Rows of tables on parameter servers: looked up there, so that the table stays where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from .._ids import numbered
from ..sharded import embedding_lookup
from ._private import in_symbolic_scope, stateless_value
from ._replicas import context
from ._variables import StrategyVariable


def take(own: Callable[..., Any], x: Any, indices: Any, axis: int | None = None) -> Any:
    """Take elements of an array, or rows of a table that may be elsewhere."""
    if not _is_table(x, axis):
        if axis == 0 and not np.size(indices) and context() is not None:
            # JAX would make a constant of it, and a replica without examples would not take part
            # where the others exchange gradients.
            array = jnp.asarray(x)
            return lax.slice_in_dim(array, 0, 0).reshape(*np.shape(indices), *array.shape[1:])
        return own(x, indices, axis=axis)
    ids = numbered(indices)
    ids = jnp.where(ids < 0, ids + x.shape[0], ids)  # Keras counts from the end
    return embedding_lookup(x.stored, ids).astype(x.dtype)


def _is_table(x: Any, axis: int | None) -> bool:
    return (
        axis == 0
        and isinstance(x, StrategyVariable)
        and getattr(x.stored, "is_remote", False)
        and not in_symbolic_scope()
        and stateless_value(x) is None
    )
