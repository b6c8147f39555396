"""The context of a function that runs on one replica."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from .. import _context, _devices, _tree
from .._reduce import ReduceOp, VariableAggregation
from ..collectives._gather import check_shapes
from ..errors import UnimplementedError
from ..values import IndexedSlices
from ._exchange import Alone, Exchange, check_common_value

__all__ = ["ReplicaContext"]


def _is_slices(value: Any) -> bool:
    return isinstance(value, IndexedSlices)


class ReplicaContext:
    """What a function given to `run` can ask, through `get_replica_context()`.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> def replica_fn():
    ...     context = jt.get_replica_context()
    ...     return context.all_reduce("SUM", context.replica_id_in_sync_group + 1.0)
    >>> strategy.run(replica_fn)
    PerReplica:{
      0: Array(3., dtype=float32),
      1: Array(3., dtype=float32)
    }
    """

    def __init__(
        self, strategy: Any, replica_id_in_sync_group: Any, exchange: Exchange | None = None
    ) -> None:
        if not (
            replica_id_in_sync_group is None
            or isinstance(replica_id_in_sync_group, (int, np.integer, jax.Array))
        ):
            raise ValueError(
                "replica_id_in_sync_group must be a whole number, an array of one, or None, got "
                f"{replica_id_in_sync_group!r}."
            )
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._exchange: Exchange = exchange or Alone(strategy)
        self._entered: list[AbstractContextManager[None]] = []

    @property
    def strategy(self) -> Any:
        """The strategy."""
        return self._strategy

    @property
    def replica_id_in_sync_group(self) -> Any:
        """The replica's index, from 0; inside a compiled step, a tracer of it."""
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are."""
        return self._strategy.num_replicas_in_sync

    @property
    def devices(self) -> list[str]:
        """The name of the device the replica runs on, of all of them inside a compiled step."""
        topology = self._strategy.topology
        devices = topology.local_devices
        if isinstance(self._replica_id, int):
            devices = [topology.devices[self._replica_id]]
        return [_devices.canonical_name(device) for device in devices]

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any, options: Any = None) -> Any:
        """Combine a value of all replicas; each gets the result.

        Gradients flow through it: they are combined in the same way.

        Args:
          reduce_op: a `ReduceOp` or its name.
          value: an array, `IndexedSlices`, or a nested structure of them.
          options: communication options.

        Returns:
          The combined value, of the same structure.

        Raises:
          ValueError: for an unknown op.
          RuntimeError: when called elsewhere than in the replica of this context.
        """
        self._require_current("all_reduce")
        op = ReduceOp.from_value(reduce_op)
        leaves, structure = _tree.flatten(value, _is_slices)
        dense = [leaf for leaf in leaves if leaf is not None and not _is_slices(leaf)]
        reduced = iter(self._exchange.all_reduce(op, dense, options)) if dense else iter(())

        def result(leaf: Any) -> Any:
            if leaf is None:
                return None
            return self._all_reduce_slices(op, leaf) if _is_slices(leaf) else next(reduced)

        return structure.unflatten([result(leaf) for leaf in leaves])

    def all_gather(self, value: Any, axis: int, options: Any = None) -> Any:
        """Concatenate a value of all replicas along an axis; each gets the result.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def replica_fn():
        ...     context = jt.get_replica_context()
        ...     return context.all_gather(jnp.ones((1,)) * context.replica_id_in_sync_group, axis=0)
        >>> strategy.experimental_local_results(strategy.run(replica_fn))[1]
        Array([0., 1.], dtype=float32)

        Args:
          value: an array, or a nested structure of them; shapes may differ along `axis` only.
          axis: the axis, at least 0 and less than the rank.
          options: communication options.

        Returns:
          The concatenated value, of the same structure.

        Raises:
          NotImplementedError: for `IndexedSlices`.
          ValueError: for scalars, shapes that differ elsewhere, or an axis out of range.
          RuntimeError: when called elsewhere than in the replica of this context.
        """
        leaves, structure = _tree.flatten(value, _is_slices)
        refuse_slices("all_gather", leaves)
        self._require_current("all_gather")
        for leaf in leaves:
            if leaf is not None:
                check_shapes([np.shape(leaf)], axis)
        return structure.unflatten(
            [None if leaf is None else self._exchange.all_gather(leaf, axis) for leaf in leaves]
        )

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Wait for all replicas and call a function once, in cross-replica context.

        Args:
          merge_fn: called with the strategy and the arguments, in which what differs between
            replicas is a `PerReplica`.
          args: this replica's positional arguments.
          kwargs: this replica's keyword arguments.

        Returns:
          What `merge_fn` returned; of distributed values, this replica's.

        Raises:
          RuntimeError: when called elsewhere than in the replica of this context, or when the
            replicas make different numbers of calls.
        """
        self._require_current("merge_call")
        return self._exchange.merge_call(merge_fn, tuple(args), dict(kwargs or {}))

    def sizes(self, size: int) -> tuple[int, ...] | None:
        """Return how many examples each replica has, given how many this one has.

        Replicas that run as Python wait for each other. None where they differ and cannot wait,
        inside a `jax.jit` or the like that began inside the replica.
        """
        return self._exchange.sizes(size)

    def expect_sum(self, value: Any) -> None:
        """Take note that a scalar will probably be added up outside of the replicas.

        It then travels with what they add up inside, such as gradients, instead of alone.
        """
        self._exchange.expect_sum(value)

    def aggregate(self, aggregation: VariableAggregation, value: Any) -> Any:
        """Combine what the replicas assign to a variable."""
        if aggregation is VariableAggregation.ONLY_FIRST_REPLICA:
            return self._exchange.from_first(value)
        op = aggregation.reduce_op
        assert op is not None
        if self.has_in_common(value):
            check_common_value(op, value, self.num_replicas_in_sync)
            return value
        return self.all_reduce(op, value)

    def has_in_common(self, value: Any) -> bool:
        """Tell whether all replicas are known to have one value, such as a number."""
        return not _is_slices(value) and self._exchange.common(value)

    def _all_reduce_slices(self, op: ReduceOp, slices: IndexedSlices) -> IndexedSlices:
        values = self._exchange.all_gather(slices.values, 0)
        indices = self._exchange.all_gather(slices.indices, 0)
        if op is ReduceOp.MEAN:
            values = values / self.num_replicas_in_sync
        return IndexedSlices(values, indices, slices.dense_shape)

    def _require_current(self, method: str) -> None:
        side = _context.current()
        if side.replica_context is self:
            return
        if side.replica_context is None:
            raise RuntimeError(
                f"Need to be inside a replica, that is in a function given to `run`, to call "
                f"ReplicaContext.{method}; it was called outside. Use strategy.reduce or "
                "strategy.gather there."
            )
        what = "ReplicaContext" if side.strategy is self._strategy else "Strategy of ReplicaContext"
        raise RuntimeError(
            f"Mismatching {what}: {method} was called on a context that is not that of the replica "
            "which is running. Ask for jt.get_replica_context() where it is used, and do not keep "
            "it."
        )

    def __enter__(self) -> ReplicaContext:
        entered = _context.opened(_context.Side(self._strategy, self))
        entered.__enter__()
        self._entered.append(entered)
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._entered.pop().__exit__(*exc_info)

    def __repr__(self) -> str:
        return f"ReplicaContext({self._strategy!r}, replica_id={self._replica_id!r})"


def refuse_slices(method: str, leaves: Sequence[Any]) -> None:
    """Refuse sparse values where only dense ones can be concatenated.

    Raises:
      NotImplementedError: when there are any.
    """
    if any(_is_slices(leaf) for leaf in leaves):
        raise UnimplementedError(
            f"{method} does not take jt.IndexedSlices: concatenating rows of one array has no "
            "meaning. Use all_reduce, or convert them with to_dense()."
        )
