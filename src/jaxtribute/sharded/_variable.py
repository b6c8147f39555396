"""Variables divided along their first axis."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context, _tree
from .._ids import missing, numbered
from ..errors import UnimplementedError
from ..values import IndexedSlices, PerReplica
from ..values._arithmetic import Arithmetic, operand
from ..values._base import describe
from ..variables import Variable, _checks, _frames
from ..variables._base import beside
from ..variables._convert import matching
from ..variables._effects import Effect
from ._indexing import select
from ._partitioners import div_sizes, offsets
from ._rows import fitting_shards, slices_of

__all__ = ["ShardedVariable"]


class ShardedVariable(Arithmetic, _tree.Leaf):
    """Variables that hold the rows of one larger array between them.

    Used as an array it is that array; `jt.nn.embedding_lookup` and indices read only the shards
    they need. Iterating goes over the shards.

    >>> shards = [jt.Variable([[1.0, 2.0], [3.0, 4.0]]), jt.Variable([[5.0, 6.0]])]
    >>> table = jt.ShardedVariable(shards, name="table")
    >>> table.shape, len(table.variables)
    ((3, 2), 2)
    >>> table[-1] * 10
    Array([50., 60.], dtype=float32)
    >>> (table * 2).tolist()
    [[2.0, 4.0], [6.0, 8.0], [10.0, 12.0]]

    Args:
      variables: the shards, in order; of the same dtype and, but for the first axis, shape.
      name: how it is called in messages.

    Raises:
      TypeError: when there are no variables, or something else among them.
      ValueError: when they do not fit together.
    """

    def __init__(self, variables: Sequence[Variable], name: str = "ShardedVariable") -> None:
        self._variables = fitting_shards(variables)
        self._name = name
        self._offsets = offsets([variable.shape[0] for variable in self._variables])

    # --- What it is ------------------------------------------------------------------------

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The shards, in order."""
        return self._variables

    @property
    def name(self) -> str:
        """The name of the whole; shards have names of their own."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all shards together."""
        return (self._offsets[-1], *self._variables[0].shape[1:])

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self._variables[0].dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def trainable(self) -> bool:
        """Whether training is to change it."""
        return self._variables[0].trainable

    @property
    def distribute_strategy(self) -> Any | None:
        """The strategy that created the shards, if one did."""
        return self._variables[0].distribute_strategy

    @property
    def is_remote(self) -> bool:
        """Whether all shards live in other processes, on parameter servers."""
        return all(variable.is_remote for variable in self._variables)

    @property
    def row_offsets(self) -> list[int]:
        """The first row of each shard, and the number of rows of all."""
        return list(self._offsets)

    # --- Reading ---------------------------------------------------------------------------

    def value(self) -> jax.Array:
        """Return all shards as one array, which may be large."""
        return _joined([variable.value() for variable in self._variables])

    def read_value(self) -> jax.Array:
        """Return all shards as one array; the same as `value`."""
        return self.value()

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return all shards as one NumPy array."""
        return np.concatenate([variable.numpy() for variable in self._variables])

    def sparse_read(self, indices: Any, name: str | None = None) -> jax.Array:
        """Return some rows, in the order in which they are asked for.

        >>> table = jt.ShardedVariable([jt.Variable([0.0, 1.0]), jt.Variable([2.0])])
        >>> table.sparse_read([2, 0]).tolist()
        [2.0, 0.0]

        Args:
          indices: which rows; one axis. Inside compiled functions, where indices are known too
            late to be refused, those out of range give rows of NaN.
          name: not used.

        Raises:
          ValueError: when `indices` has not one axis, or is out of range.
          NotImplementedError: when rows are not divided evenly between the shards.
        """
        ids = _checks.checked_ids(self, self._check_layout("sparse_read", indices))
        return _frames.lookup(self, jnp.asarray(ids))

    def take(self, frame: _frames.Frame, ids: jax.Array) -> jax.Array:
        """Return the rows `ids` of what the shards are worth in a frame."""
        ids = numbered(ids)
        rows: Any = None
        for variable, start, end in self._ranges():
            if start == end:
                continue
            inside = (ids >= start) & (ids < end)
            part = variable.take(frame, jnp.where(inside, ids - start, end - start))
            if rows is None:
                rows = part  # right for the first shard, and for ids that are no rows
            else:
                where = inside.reshape(inside.shape + (1,) * (part.ndim - 1))
                rows = jnp.where(where, beside(rows, part), rows)
        if rows is None:
            rows = jnp.full((*ids.shape, *self.shape[1:]), missing(self.dtype), self.dtype)
        return rows

    def fetch(self, ids: Any) -> Any:
        """Return some rows of shards that live in other processes."""
        shard: Any = self._variables[0]
        return shard.fetch(ids, of=self)

    def fetch_all(self, lookups: Sequence[tuple[Any, np.ndarray[Any, Any]]]) -> list[Any]:
        """Return rows of several tables that live in other processes."""
        shard: Any = self._variables[0]
        return shard.fetch_all(lookups)

    def __getitem__(self, index: Any) -> jax.Array:
        """Return what NumPy would, reading only the shards that are needed.

        Raises:
          IndexError: out of range.
          TypeError: for JAX arrays of numbers; see `sparse_read`.
          ValueError: for a step of 0.
        """
        selection = select(index, self.shape)
        if isinstance(selection.rows, range):
            rows = self._range(selection.rows)
        else:
            rows = _frames.lookup(self, jnp.asarray(selection.rows))
        if len(selection.rest) == 1 and isinstance(selection.rest[0], slice):
            return rows  # all of them
        return rows[selection.rest]

    def _range(self, rows: range) -> jax.Array:
        if self.is_remote and 2 * len(rows) <= self.shape[0]:
            return _frames.lookup(self, jnp.asarray(rows, jnp.int32))
        ascending = rows if rows.step > 0 else rows[::-1]
        parts: list[jax.Array] = []
        for variable, start, end in self._ranges():
            wanted = ascending[
                bisect.bisect_left(ascending, start) : bisect.bisect_left(ascending, end)
            ]
            if len(wanted):
                first, last = wanted[0] - start, wanted[-1] - start
                parts.append(variable.value()[first : last + 1 : wanted.step])
        if not parts:
            return jnp.zeros((0, *self.shape[1:]), self.dtype)
        joined = _joined(parts)
        return joined if rows.step > 0 else joined[::-1]

    def _operand(self) -> jax.Array:
        return self.value()

    def __jax_array__(self) -> jax.Array:
        return self.value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.numpy(), dtype=dtype)

    # --- Writing ---------------------------------------------------------------------------

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> ShardedVariable:
        """Replace the value.

        >>> table = jt.ShardedVariable([jt.Variable([0.0, 0.0]), jt.Variable([0.0])])
        >>> [shard.numpy().tolist() for shard in table.assign([1.0, 2.0, 3.0])]
        [[1.0, 2.0], [3.0]]

        Args:
          value: an array, or what stands for one, of the shape of the whole.
          use_locking: not used.
          name: not used.
          read_value: not used.

        Returns:
          The sharded variable itself.

        Raises:
          ValueError: for another shape or an unsuitable type.
        """
        return self._each(lambda shard, part: shard.assign(part), value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> ShardedVariable:
        """Add to the value; otherwise as `assign`."""
        return self._each(lambda shard, part: shard.assign_add(part), delta)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> ShardedVariable:
        """Subtract from the value; otherwise as `assign`."""
        return self._each(lambda shard, part: shard.assign_sub(part), delta)

    def _each(self, update: Callable[[Variable, Any], Any], value: Any) -> ShardedVariable:
        for shard, part in zip(self._variables, self.split(value), strict=True):
            update(shard, part)
        return self

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        """Add to some rows; a row that is named twice is added to twice.

        >>> table = jt.ShardedVariable([jt.Variable([0.0, 0.0]), jt.Variable([0.0])])
        >>> table.scatter_add(jt.IndexedSlices([1.0, 2.0, 4.0], [2, 0, 2])).numpy().tolist()
        [2.0, 0.0, 5.0]

        Args:
          sparse_delta: the rows, as `IndexedSlices`.
          use_locking: not used; no update is lost either way.
          name: not used.

        Returns:
          The sharded variable itself.

        Raises:
          TypeError: when `sparse_delta` is something else.
          ValueError: when its indices do not have one axis, or are out of range.
          NotImplementedError: when rows are not divided evenly between the shards.
        """
        return self._scatter("scatter_add", sparse_delta)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        """Subtract from some rows; otherwise as `scatter_add`."""
        return self._scatter("scatter_sub", sparse_delta)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        """Multiply some rows; otherwise as `scatter_add`."""
        return self._scatter("scatter_mul", sparse_delta)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        """Divide some rows; otherwise as `scatter_add`."""
        return self._scatter("scatter_div", sparse_delta)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        """Take the minimum with some rows; otherwise as `scatter_add`."""
        return self._scatter("scatter_min", sparse_delta)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        """Take the maximum with some rows; otherwise as `scatter_add`."""
        return self._scatter("scatter_max", sparse_delta)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> ShardedVariable:
        """Replace some rows; otherwise as `scatter_add`."""
        return self._scatter("scatter_update", sparse_delta)

    def _scatter(self, method: str, sparse_delta: Any) -> ShardedVariable:
        if isinstance(sparse_delta, IndexedSlices):
            self._check_layout(method, sparse_delta.indices)
        slices = _checks.checked_rows(self, sparse_delta)
        if method == "scatter_div":
            _checks.check_divisors(self, slices.values)
        context = _context.get_replica_context()
        # Several replicas have to meet at each shard, also those that have no rows for it.
        together = context is not None and context.num_replicas_in_sync > 1
        if self.is_remote:
            with _context.accessing(self.distribute_strategy, f"the variable {self.name!r}"):
                shard: Any = self._variables[0]
                slices = shard._aggregated(context, slices) if together else slices
                rows = matching(self, slices)
                target: Any = self  # rows are divided between the shards when they are sent
                _frames.current().record([Effect(target, method, (rows.values, rows.indices))])
            return self
        for shard, part in zip(self._variables, self.split(slices), strict=True):
            if together or part.indices.size:
                shard.scatter_rows(method.removeprefix("scatter_"), part)
        return self

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Have something done to variables that live in other processes."""
        self._variables[0].carry_out(effects)

    def split(self, value: Any) -> list[Any]:
        """Return what each shard gets of a value for the whole, such as a gradient.

        Rows with indices that are not known yet, inside a compiled function, go to all shards;
        those of others with an index one past the shard's last, which JAX leaves out.

        Args:
          value: an array of the shape of the whole, or `IndexedSlices`.

        Raises:
          ValueError: for an array of another shape, or one for each replica.
        """
        if isinstance(value, IndexedSlices):
            return [slices_of(value, start, end) for _, start, end in self._ranges()]
        if isinstance(value, PerReplica):
            raise ValueError(
                f"The sharded variable {self.name!r} cannot be assigned {value!r}, which has a "
                "value for each replica. Combine them first, with strategy.reduce."
            )
        array = operand(value)
        array = array if hasattr(array, "shape") else np.asarray(array)
        if array.shape != self.shape:
            raise ValueError(
                f"The sharded variable {self.name!r} has shape {self.shape} and cannot be assigned "
                f"a value of shape {array.shape}. Pass the value of all shards together; use "
                "jnp.broadcast_to or jnp.reshape first."
            )
        return [array[start:end] for _, start, end in self._ranges()]

    def _ranges(self) -> list[tuple[Variable, int, int]]:
        return list(zip(self._variables, self._offsets[:-1], self._offsets[1:], strict=True))

    def _check_layout(self, method: str, indices: Any) -> Any:
        ids = indices if isinstance(indices, Tracer) else np.asarray(operand(indices))
        if ids.ndim != 1:
            raise ValueError(f"{method} needs indices with one axis, got shape {ids.shape}.")
        sizes = [end - start for _, start, end in self._ranges()]
        if sizes != div_sizes(self.shape[0], len(sizes)):
            raise UnimplementedError(
                f"{method} needs rows that are divided evenly between the shards, the first ones "
                f"having at most one more. Those of {self.name!r} have {sizes} rows."
            )
        return ids

    # --- Python's protocols ----------------------------------------------------------------

    def __iter__(self) -> Iterator[Variable]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return iter(self._variables)

    def __len__(self) -> int:
        return len(self._variables)

    def __repr__(self) -> str:
        return describe(type(self).__name__, self._variables)


# Lets JAX's functions take it for the array it stands for.
jax.tree_util.register_pytree_node(
    ShardedVariable,
    lambda variable: ((variable.value(),), None),
    lambda _, children: children[0],  # pyright: ignore[reportArgumentType]
)


def _joined(arrays: list[jax.Array]) -> jax.Array:
    if len(arrays) == 1:
        return arrays[0]
    return jnp.concatenate([beside(arrays[0], array) for array in arrays])
