"""Updates of some rows of a variable."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from .._ids import or_past_the_last
from ..values import IndexedSlices


def combine(kind: str) -> Callable[[jax.Array, IndexedSlices], jax.Array]:
    """Return the function that applies rows in the way `kind` names.

    Indices that are no rows are left out. Of rows to put in place, the last one with an index
    counts. Whole numbers are divided towards zero, as TensorFlow does it.
    """

    def apply(old: jax.Array, rows: IndexedSlices) -> jax.Array:
        count = old.shape[0]
        indices = or_past_the_last(rows.indices, count)
        values = jnp.asarray(rows.values)
        if kind == "div":
            return _divided(old, indices, values)
        if kind == "update":
            is_last = _turns(indices, backwards=True) == 0
            return old.at[jnp.where(is_last, indices, count)].set(values, mode="drop")
        if kind == "sub":
            return old.at[indices].add(-values, mode="drop")
        return getattr(old.at[indices], kind)(values, mode="drop")

    return apply


def _divided(old: jax.Array, indices: jax.Array, values: jax.Array) -> jax.Array:
    if not jnp.issubdtype(old.dtype, jnp.integer):
        return old.at[indices].divide(values, mode="drop")
    count, turns = old.shape[0], _turns(indices)

    def divide(turn: jax.Array, rows: jax.Array) -> jax.Array:
        own = jnp.where(turns == turn, indices, count)
        quotients = jax.lax.div(rows.at[own].get(mode="clip"), values)  # towards zero
        return rows.at[own].set(quotients, mode="drop")

    if not indices.size or not count:
        return old
    # By one divisor of a row after the other, as their product might not fit into the type.
    return jax.lax.fori_loop(0, jnp.max(turns) + 1, divide, old)


def _turns(indices: jax.Array, backwards: bool = False) -> jax.Array:
    """Return how many equal indices come before each, or after it."""
    if backwards:
        return _turns(indices[::-1])[::-1]
    order = jnp.argsort(indices, stable=True)
    ordered = indices[order]
    turns = jnp.arange(indices.size) - jnp.searchsorted(ordered, ordered, side="left")
    return jnp.zeros(indices.size, turns.dtype).at[order].set(turns)


# With min, max and update the result depends on the order of the replicas' rows.
NEEDS_ONE_WRITER = frozenset({"min", "max", "update"})
