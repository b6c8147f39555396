"""Looking up rows of tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._ids import missing, numbered, outside, take
from ..values._arithmetic import operand
from ..variables import Variable, _frames
from ..variables._checks import checked_ids
from ._ragged import RaggedIds, whole_numbers
from ._variable import ShardedVariable

__all__ = ["embedding_lookup", "safe_embedding_lookup_sparse"]

_COMBINERS = ("mean", "sqrtn", "sum")


def embedding_lookup(
    params: Any,
    ids: Any,
    max_norm: float | None = None,
    combiner: str | None = None,
    weights: Any = None,
    name: str | None = None,
    default_id: int | None = None,
) -> jax.Array:
    """Return rows of a table, or combinations of them.

    Of a variable that is divided between parameter servers, only the rows that are needed are
    read, from all servers at the same time. Gradients with respect to it, as `jt.value_and_grad`
    takes them, are `jt.IndexedSlices` of these rows, provided that the table is used through
    lookups only.

    >>> table = jt.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    >>> jt.nn.embedding_lookup(table, [2, 0]).tolist()
    [[5.0, 6.0], [1.0, 2.0]]
    >>> bags = jt.nn.RaggedIds.from_lists([[0, 2], [1]])
    >>> jt.nn.embedding_lookup(table, bags, combiner="mean").tolist()
    [[3.0, 4.0], [3.0, 4.0]]

    Args:
      params: a variable, a `ShardedVariable`, a list of variables that hold the rows of one table
        in order, or an array.
      ids: which rows: an array of any shape. With a combiner, `RaggedIds`, or an array whose last
        axis is a bag of ids, padded with -1.
      max_norm: the greatest L2 norm of a row; longer ones are scaled down.
      combiner: combine the rows of each bag: "sum"; "mean", the weighted average; or "sqrtn", the
        weighted sum divided by the root of the sum of squares of the weights. A bag with nothing
        in it gives zeros.
      weights: a weight for each id, 1 by default; of the shape of `ids`, or of its values.
      name: not used.
      default_id: the row to use for ids that are out of range, such as one for unknown words;
        by default there is none, and they are refused.

    Returns:
      A row for each id, or for each bag. Inside compiled functions, where ids are known too late
      to be refused, those out of range give rows of NaN and change no row; but rows of parameter
      servers are fetched, which raises. See `jt.config.check_ids_in_functions`.

    Raises:
      ValueError: when an id is out of range, negative ones included; for an unknown combiner, or
        for shapes that do not fit together.
      TypeError: when ids are not whole numbers, or `params` is no table.
    """
    table = _table(params)
    if combiner is None:
        if weights is not None or isinstance(ids, RaggedIds):
            raise ValueError(
                "embedding_lookup needs a combiner for bags of ids and for weights: one of "
                f"{', '.join(_COMBINERS)}."
            )
        return _rows(table, whole_numbers("ids", ids), None, max_norm, default_id)
    bags = _Bags(ids, weights)
    return bags.combined(table, combiner, max_norm, bags.ids != -1, default_id)


def safe_embedding_lookup_sparse(
    embedding_weights: Any,
    sparse_ids: Any,
    sparse_weights: Any = None,
    combiner: str = "mean",
    default_id: int | None = None,
    max_norm: float | None = None,
    name: str | None = None,
) -> jax.Array:
    """Return combinations of rows of a table, leaving out what cannot be used.

    Left out are negative ids and, but for "sum", ids whose weight is not positive.

    >>> table = jt.Variable([[1.0, 2.0], [3.0, 4.0]])
    >>> bags = jt.nn.RaggedIds.from_lists([[0, -1], [], [1]])
    >>> jt.nn.safe_embedding_lookup_sparse(table, bags).tolist()
    [[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]]

    Args:
      embedding_weights: the table; see `embedding_lookup`.
      sparse_ids: bags of ids, as `RaggedIds`, or as an array whose last axis is a bag.
      sparse_weights: a weight for each id, 1 by default.
      combiner: "mean", "sqrtn" or "sum"; see `embedding_lookup`.
      default_id: the row to give for a bag with nothing in it; zeros by default.
      max_norm: the greatest L2 norm of a row; longer ones are scaled down.
      name: not used.

    Returns:
      A row for each bag.

    Raises:
      ValueError: when an id is too large, for an unknown combiner, or for shapes that do not fit
        together.
      TypeError: when ids are not whole numbers, or the table is none.
    """
    table = _table(embedding_weights)
    bags = _Bags(sparse_ids, sparse_weights)
    used = bags.ids >= 0
    if bags.weights is not None and combiner != "sum":
        used = used & (bags.weights > 0)
    result = bags.combined(table, combiner, max_norm, used)
    if default_id is None:
        return result
    default = _rows(table, np.asarray(default_id), None, max_norm)
    count = bags.add_up(jnp.asarray(used, jnp.int32))
    empty = (count == 0).reshape(count.shape + (1,) * default.ndim)
    return jnp.where(empty, default, result)


class _Bags:
    """Bags of ids with their weights, and how to add up something in each bag."""

    ids: Any
    add_up: Callable[[jax.Array], jax.Array]

    def __init__(self, ids: Any, weights: Any) -> None:
        if isinstance(ids, RaggedIds):
            bags, number = ids.bag_of_each(), ids.num_bags
            known = whole_numbers("ids", ids.values)
            # What comes after the last bag counts for none, and need not be an id.
            where = jnp.where if isinstance(bags, Tracer) or isinstance(known, Tracer) else np.where
            self.ids = where(bags < number, known, -1)
            self.add_up = lambda x: jax.ops.segment_sum(x, bags, number)
        else:
            self.ids = whole_numbers("ids", ids)
            if not self.ids.ndim:
                raise ValueError(
                    "With a combiner, ids must have an axis for the bag, got a scalar."
                )
            axis = self.ids.ndim - 1
            self.add_up = lambda x: jnp.sum(x, axis=axis)
        self.weights: Any = None if weights is None else operand(weights)
        if self.weights is None:
            return
        if not isinstance(self.weights, Tracer):
            self.weights = np.asarray(self.weights)
        if self.weights.shape != self.ids.shape:
            raise ValueError(
                f"weights must have the shape of the ids, {self.ids.shape}, got "
                f"{self.weights.shape}."
            )

    def combined(
        self,
        table: Any,
        combiner: str,
        max_norm: float | None,
        used: Any,
        default_id: int | None = None,
    ) -> jax.Array:
        """Combine the rows of each bag, of those ids that are used."""
        if combiner not in _COMBINERS:
            raise ValueError(f"The combiner must be one of {_COMBINERS}, got {combiner!r}.")
        rows = _rows(table, self.ids, used, max_norm, default_id)
        dtype = rows.dtype if jnp.issubdtype(rows.dtype, jnp.inexact) else jnp.float32
        weights = jnp.asarray(used, dtype)
        if self.weights is not None:
            weights = jnp.where(used, jnp.asarray(self.weights, dtype), 0)

        def beside_rows(x: Any) -> jax.Array:
            return jnp.reshape(x, x.shape + (1,) * (rows.ndim - self.ids.ndim))

        # Not only a weight of 0, which would let through infinities of rows that do not count.
        total = self.add_up(jnp.where(beside_rows(used), rows * beside_rows(weights), 0))
        if combiner == "sum":
            return total
        if combiner == "mean":
            norm = self.add_up(weights)
        else:
            squares = self.add_up(weights**2)
            norm = jnp.sqrt(jnp.where(squares == 0, 1, squares))
        norm = norm.reshape(norm.shape + (1,) * (total.ndim - norm.ndim))
        return jnp.where(norm == 0, 0, total / jnp.where(norm == 0, 1, norm))


def _table(params: Any) -> Any:
    """Return what `params` stands for: a variable, a sharded one, or an array."""
    if isinstance(params, (list, tuple)) and all(isinstance(each, Variable) for each in params):  # pyright: ignore[reportUnknownVariableType]
        variables: list[Variable] = list(params)  # pyright: ignore[reportUnknownArgumentType]
        params = variables[0] if len(variables) == 1 else ShardedVariable(variables)
    if not isinstance(params, (Variable, ShardedVariable)):
        params = operand(params)
        if not isinstance(params, (jax.Array, np.ndarray)):
            raise TypeError(
                "The table must be a variable, a jt.ShardedVariable, a list of variables or an "
                f"array, got {params!r} of type {type(params).__name__}."
            )
    if not params.ndim:
        raise ValueError(f"The table {params!r} is a scalar, which has no rows.")
    return params


def _rows(
    table: Any, ids: Any, used: Any, max_norm: float | None, default_id: int | None = None
) -> jax.Array:
    """Return a row for each id, any row for those that are not used.

    Args:
      table: a variable, a sharded one, or an array.
      ids: which rows; a NumPy array or a tracer.
      used: which of the ids count, all if None; a NumPy array or a tracer.
      max_norm: the greatest norm of a row.
      default_id: the row to use for ids that are out of range.
    """
    shape = (*ids.shape, *table.shape[1:])
    wrong: Any = None
    if default_id is not None:
        ids = _with_default(table, ids, default_id, used)
    # In the place of those that are not used comes one that is, so that no other row is looked up.
    if isinstance(ids, Tracer) or isinstance(used, Tracer):
        ids = numbered(ids)
        if used is not None:
            ids = jnp.where(used, ids, jnp.max(jnp.where(used, ids, 0), initial=0))
        checked_ids(table, ids)
        wrong = outside(ids, table.shape[0])
    else:
        checked_ids(table, ids if used is None else ids[used])
        ids = ids if used is None else np.where(used, ids, np.max(ids[used], initial=0))
    nothing = not ids.size and (not hasattr(table, "is_remote") or table.is_remote)
    if nothing or not table.shape[0]:  # nothing to look up, or nowhere to do so
        return jnp.full(shape, missing(table.dtype), table.dtype)
    rows = _lookup(table, jnp.asarray(ids).reshape(-1)).reshape(shape)
    if wrong is not None:
        where = wrong.reshape(wrong.shape + (1,) * (rows.ndim - wrong.ndim))
        rows = jnp.where(where, missing(table.dtype), rows)
    return rows if max_norm is None else _clipped(rows, ids.ndim, max_norm)


def _with_default(table: Any, ids: Any, default_id: int, used: Any) -> Any:
    """Return ids with another in the place of those that are used and out of range."""
    checked_ids(table, whole_numbers("default_id", default_id))
    if isinstance(ids, Tracer) or isinstance(used, Tracer):
        wrong = outside(ids, table.shape[0])
        return jnp.where(wrong if used is None else wrong & used, default_id, numbered(ids))
    wrong = (ids < 0) | (ids >= table.shape[0])
    wrong = wrong if used is None else wrong & used
    return np.where(wrong, default_id, np.where(wrong, 0, ids).astype(np.int64))


def _lookup(table: Any, ids: jax.Array) -> jax.Array:
    if isinstance(table, (Variable, ShardedVariable)):
        return _frames.lookup(table, ids)
    return take(table, ids)


def _clipped(rows: jax.Array, first_axis: int, max_norm: float) -> jax.Array:
    axes = tuple(range(first_axis, rows.ndim))
    squares = jnp.sum(rows * rows, axis=axes, keepdims=True)
    too_long = squares > max_norm**2
    norm = jnp.sqrt(jnp.where(too_long, squares, 1))  # whose gradient is not wanted at 0
    return jnp.where(too_long, rows * (max_norm / norm), rows)
