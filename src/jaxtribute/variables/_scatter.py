"""Updates of some rows of a variable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ..values import IndexedSlices


def checked(variable: Any, sparse_delta: Any) -> IndexedSlices:
    """Refuse anything that is not rows.

    Raises:
      TypeError: when `sparse_delta` is not `IndexedSlices`.
    """
    if isinstance(sparse_delta, IndexedSlices):
        return sparse_delta
    raise TypeError(
        f"The rows to change in the variable {variable.name!r} must be given as "
        f"jt.IndexedSlices(values, indices), got {sparse_delta!r} of type "
        f"{type(sparse_delta).__name__}."
    )


def combine(kind: str) -> Callable[[jax.Array, IndexedSlices], jax.Array]:
    """Return the function that applies rows in the way `kind` names."""

    def apply(old: jax.Array, rows: IndexedSlices) -> jax.Array:
        indices, values = jnp.asarray(rows.indices), jnp.asarray(rows.values)
        at = old.at[indices]
        if kind == "div":
            return _divide(old, indices, values)
        if kind == "sub":
            return at.add(-values)
        return getattr(at, "set" if kind == "update" else kind)(values)

    return apply


def _divide(old: jax.Array, indices: jax.Array, values: jax.Array) -> jax.Array:
    if jnp.issubdtype(old.dtype, jnp.integer):
        divisors = jnp.ones_like(old).at[indices].mul(values)
        return old // divisors
    return old.at[indices].divide(values)


# With min, max and update the result depends on the order of the replicas' rows.
NEEDS_ONE_WRITER = frozenset({"min", "max", "update"})
