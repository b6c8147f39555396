"""What variables make up one, and which rows belong to which of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._ids import numbered
from ..values import IndexedSlices
from ..values._arithmetic import operand
from ..variables import Variable


def fitting_shards(variables: Any) -> tuple[Variable, ...]:
    """Return the shards of one variable.

    Raises:
      TypeError: when there are none, or something else among them.
      ValueError: when they do not fit together.
    """
    if not isinstance(variables, Sequence) or not variables:
        raise TypeError(f"A ShardedVariable is made of a list of variables, got {variables!r}.")
    shards: tuple[Any, ...] = tuple(variables)  # pyright: ignore[reportUnknownArgumentType]
    for shard in shards:
        if not isinstance(shard, Variable):
            raise TypeError(
                f"A ShardedVariable is made of variables, got {shard!r} of type "
                f"{type(shard).__name__} among them."
            )
    if len({id(shard) for shard in shards}) < len(shards):
        raise ValueError("A ShardedVariable needs different variables, got one of them twice.")
    if len({np.dtype(shard.dtype) for shard in shards}) > 1:
        raise ValueError(
            "All shards of a ShardedVariable must have the same dtype, got "
            f"{[str(shard.dtype) for shard in shards]}."
        )
    if any(not shard.shape for shard in shards) or len({shard.shape[1:] for shard in shards}) > 1:
        raise ValueError(
            "All shards of a ShardedVariable must have the same shape but for the first axis, got "
            f"{[shard.shape for shard in shards]}."
        )
    return shards


def slices_of(slices: IndexedSlices, start: int, end: int) -> IndexedSlices:
    """Return those rows that belong to the shard from `start` to `end`, by their numbers there.

    Where the indices are not known yet, all rows, those of other shards with an index that is one
    past the shard's last; JAX leaves such rows out when it adds to an array.
    """
    indices, values = slices.indices, operand(slices.values)
    if isinstance(indices, Tracer):
        indices = numbered(indices)
        inside = (indices >= start) & (indices < end)
        return IndexedSlices(values, jnp.where(inside, indices - start, end - start))
    ids = np.asarray(indices)
    [own] = ((ids >= start) & (ids < end)).nonzero()
    rows = values if isinstance(values, (jax.Array, np.ndarray)) else np.asarray(values)
    return IndexedSlices(rows[own], ids[own] - start)
