"""Methods of strategies that libraries need rather than training programs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _context, _devices, _tree
from .._reduce import ReduceOp
from .._topology import Topology
from ..collectives import _destinations
from ..collectives._gather import gather
from ..values import IndexedSlices, Mirrored, PerReplica
from ..values._regroup import is_distributed, select
from ..values._spmd import SpmdPerReplica
from ..variables import Variable, _frames
from ..variables._distributed import Component, DistributedVariable
from ._exchange import check_common_value

__all__ = ["StrategyExtended"]


class StrategyExtended:
    """Further methods of a strategy, under `strategy.extended`.

    >>> jt.MirroredStrategy(["CPU:0", "CPU:1"]).extended.worker_devices
    ('/job:localhost/replica:0/task:0/device:CPU:0', '/job:localhost/replica:0/task:0/device:CPU:1')
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    # --- Devices and settings --------------------------------------------------------------

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """The names of the devices that replicas run on."""
        return tuple(_devices.canonical_name(d) for d in self._strategy.topology.local_devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The names of the devices that hold variables."""
        return self.worker_devices

    @property
    def experimental_require_static_shapes(self) -> bool:
        """Whether shapes must be known when a step is traced; a batch that differs runs eagerly."""
        return False

    @property
    def should_checkpoint(self) -> bool:
        """Whether this process is to write checkpoints: it is the chief, or trains alone."""
        return self._strategy.topology.group.index == 0

    @property
    def should_save_summary(self) -> bool:
        """Whether this process is to write summaries: it is the chief, or trains alone."""
        return self._strategy.topology.group.index == 0

    @property
    def experimental_between_graph(self) -> bool:
        """Whether there are several workers, of which each runs the program."""
        return self._strategy.topology.spans_workers

    @property
    def experimental_should_init(self) -> bool:
        """Whether this process is to initialize variables."""
        return True

    # --- Reducing and copying --------------------------------------------------------------

    def reduce_to(
        self, reduce_op: ReduceOp | str, value: Any, destinations: Any, options: Any = None
    ) -> Any:
        """Combine the replicas' values and deliver the result; variables are not changed.

        Args:
          reduce_op: a `ReduceOp` or its name.
          value: a distributed value, or a nested structure of them.
          destinations: a device or its name for one array there, or a variable or distributed
            value for a `Mirrored` on its devices.
          options: communication options.

        Raises:
          ValueError: for an unknown op, a destination that names no device, or SUM of a value that
            is not distributed.
          AssertionError: for a list of destinations.
          RuntimeError: inside a replica or under another strategy.
        """
        with _context.cross_replica(self._strategy, "StrategyExtended.reduce_to"):
            op = ReduceOp.from_value(reduce_op)
            destination = _destinations.parse(destinations)
            timeout = self._strategy.cross_device_ops.with_options(options).timeout
            with self._strategy.topology.group.limited(timeout):
                return _tree.map_leaves(
                    lambda leaf: self._reduce_leaf(op, leaf, destination, options), value, _is_value
                )

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: Any = None,
    ) -> list[Any]:
        """Do several `reduce_to` in fewer transfers.

        Args:
          reduce_op: a `ReduceOp` or its name.
          value_destination_pairs: the values and destinations.
          options: communication options.

        Returns:
          The results, in order.

        Raises:
          ValueError: when an element is no (value, destination) tuple.
          RuntimeError: inside a replica or under another strategy.
        """
        with _context.cross_replica(self._strategy, "StrategyExtended.batch_reduce_to"):
            pairs = list(value_destination_pairs)
            _destinations.check_pairs(pairs)
            if all(isinstance(value, PerReplica) for value, _ in pairs):
                topology, ops = self._strategy.topology, self._strategy.cross_device_ops
                with topology.group.limited(ops.with_options(options).timeout):
                    for value, _ in pairs:
                        value.stacked(topology)
                    return ops.batch_reduce(reduce_op, pairs, options)
            return [self.reduce_to(reduce_op, v, d, options) for v, d in pairs]

    def _reduce_leaf(self, op: ReduceOp, leaf: Any, destination: Any, options: Any) -> Any:
        strategy = self._strategy
        if isinstance(leaf, IndexedSlices):
            return self._reduce_slices(op, leaf)
        if isinstance(leaf, DistributedVariable):
            leaf = leaf.as_value()
        if isinstance(leaf, PerReplica) and not isinstance(leaf, SpmdPerReplica):
            leaf.stacked(strategy.topology)
        if is_distributed(leaf):
            return strategy.cross_device_ops.reduce(op, leaf, destination, options)
        check_common_value(op, leaf, strategy.num_replicas_in_sync)
        if strategy.num_replicas_in_sync > 1:
            return leaf
        return strategy.cross_device_ops.broadcast_implementation(jnp.asarray(leaf), destination)

    def _reduce_slices(self, op: ReduceOp, slices: IndexedSlices) -> IndexedSlices:
        if not isinstance(slices.values, PerReplica):
            check_common_value(op, slices, self._strategy.num_replicas_in_sync)
            return slices
        topology = self._strategy.topology
        values, indices = gather(slices.values, 0, topology), slices.indices
        if isinstance(indices, PerReplica):
            indices = gather(indices, 0, topology)
        else:
            indices = jnp.tile(jnp.asarray(indices), self._strategy.num_replicas_in_sync)
        if op is ReduceOp.MEAN:
            values = values / self._strategy.num_replicas_in_sync
        return IndexedSlices(values, indices, slices.dense_shape)

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Copy a value to a device, or to all devices of a variable or distributed value.

        Args:
          tensor: the value; Python numbers are returned as they are.
          destinations: a device or its name, a variable or a distributed value.

        Raises:
          AssertionError: for a list of destinations, or none.
          RuntimeError: inside a replica or under another strategy.
        """
        with _context.cross_replica(self._strategy, "StrategyExtended.broadcast_to"):
            if destinations is None:
                raise AssertionError("broadcast_to needs a destination, got None.")
            destination = _destinations.parse(destinations)
            if isinstance(tensor, (int, float)):
                return tensor
            return self._strategy.cross_device_ops.broadcast(tensor, destination)

    # --- Replicas --------------------------------------------------------------------------

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Call a function on each replica; the older name of `Strategy.run`."""
        return self._strategy.run(fn, args=args, kwargs=kwargs)

    # --- Variables -------------------------------------------------------------------------

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(variable, *args)` to update a variable on the devices that hold it.

        Inside a replica it is done once for all of them, through `merge_call`. If each replica has
        a value of its own, with `VariableSynchronization.ON_READ`, each updates it.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = jt.Variable(1.0)
        ...     _ = strategy.extended.update(v, lambda v, x: v.assign(x), args=(5.0,))
        >>> v.numpy().item()
        5.0

        Args:
          var: a variable of this strategy.
          fn: updates the variable it is given.
          args: further arguments of `fn`, the same for all copies.
          kwargs: further keyword arguments.
          group: return one result rather than a tuple with one for each copy.

        Raises:
          ValueError: when an argument differs between replicas in such a way that the copies
            would, or when the variable is not of this strategy.
        """
        context = _context.get_replica_context()
        inside = context is not None and context.strategy is self._strategy
        if getattr(var, "differs_between_replicas", False) and self._strategy.owns(var):
            return self._update_each(var, fn, tuple(args), dict(kwargs or {}), group, inside)
        if context is not None and inside and _context.has_strategy():
            return context.merge_call(
                lambda strategy, *a, **k: strategy.extended.update(var, fn, a, k, group),
                args=tuple(args),
                kwargs=kwargs,
            )
        with _context.cross_replica(self._strategy, "StrategyExtended.update"):
            if not self._strategy.owns(var):
                raise ValueError(f"{var!r} was not created in the scope of {self._strategy!r}.")
            result = fn(var, *self._equal(var, tuple(args)), **self._equal(var, dict(kwargs or {})))
            copies = self._strategy.topology.num_local
            return result if group else (result,) * copies

    def _update_each(
        self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool, inside: bool
    ) -> Any:
        """Have each replica update its own value of a variable."""
        if inside:
            return fn(var, *args, **kwargs)
        if _frames.current().local:  # in a merge call of a compiled step, which all replicas make
            args, kwargs = _tree.map_leaves(_of_this_replica, (args, kwargs))
            with _context.opened(_replica_around(self._strategy)):
                return fn(var, *args, **kwargs)
        result = self._strategy.run(lambda *a, **k: fn(var, *a, **k), args=args, kwargs=kwargs)
        return result if group else self._strategy.experimental_local_results(result)

    def _equal(self, var: Any, arguments: Any) -> Any:
        """Replace distributed arguments by the value all replicas have in common."""

        def common(leaf: Any) -> Any:
            if isinstance(leaf, Mirrored):
                return leaf.component(0)
            if not isinstance(leaf, PerReplica):
                return leaf
            if not leaf.is_traced and _is_equal_everywhere(leaf, self._strategy.topology):
                return leaf.components[0]
            raise ValueError(
                f"The copies of {getattr(var, 'name', var)!r} are equal at all times, and cannot "
                f"be updated with {leaf!r}, which differs between replicas. Combine it first: "
                "strategy.extended.reduce_to('SUM', value, variable)."
            )

        return _tree.map_leaves(common, arguments)

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call `fn(*args)` where the variables named by `non_slot_devices` live."""
        with _context.cross_replica(self._strategy, "StrategyExtended.update_non_slot"):
            result = fn(*select(0, tuple(args)), **select(0, dict(kwargs or {})))
            return result if group else (result,) * len(tuple(colocate_with))

    def non_slot_devices(self, var_list: Any) -> tuple[str, ...]:
        """Return the devices for variables that belong to no other variable."""
        return self.parameter_devices

    def read_var(self, v: Any) -> jax.Array:
        """Return the value of a variable, combined over replicas where it differs."""
        return v.value()

    def value_container(self, value: Any) -> Any:
        """Return the variable that `value` is a copy of, or `value` itself."""
        return value.container if isinstance(value, Component) else value

    def variable_created_in_scope(self, v: Any) -> bool:
        """Tell whether a variable was created in this strategy's scope."""
        return self._strategy.owns(v)

    def colocate_vars_with(self, colocate_with_variable: Any) -> AbstractContextManager[None]:
        """Create variables where another one lives.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = jt.Variable(1.0)
        ...     with strategy.extended.colocate_vars_with(v):
        ...         momentum = jt.Variable(0.0)
        >>> momentum.device == v.device
        True

        Args:
          colocate_with_variable: a variable of this strategy.

        Raises:
          RuntimeError: outside the strategy's scope.
          ValueError: when the variable is not of this strategy.
        """
        if _context.get_strategy() is not self._strategy:
            raise RuntimeError(
                "colocate_vars_with was called outside the scope of its strategy. Put it inside "
                "`with strategy.scope():`."
            )
        if not self._strategy.owns(colocate_with_variable):
            raise ValueError(
                f"{colocate_with_variable!r} was not created in the scope of {self._strategy!r}, "
                "so nothing can be placed beside it."
            )
        return self._colocated(colocate_with_variable)

    @contextmanager
    def _colocated(self, variable: Variable) -> Generator[None]:
        # All variables of a strategy for one process live on the same devices.
        yield


def _replica_around(strategy: Any) -> _context.Side:
    """Return the replica, in a compiled step, that made the merge call that is running."""
    return next(
        side
        for side in reversed(_context.stack())
        if isinstance(side, _context.Side)
        and side.replica_context is not None
        and side.strategy is strategy
    )


def _of_this_replica(leaf: Any) -> Any:
    if isinstance(leaf, SpmdPerReplica):
        return leaf.local
    return leaf.component(None) if isinstance(leaf, Mirrored) else leaf


def _is_equal_everywhere(value: PerReplica, topology: Topology) -> bool:
    first, *others = [np.asarray(component) for component in value.components]
    equal = all(np.array_equal(first, other) for other in others)
    if not topology.spans_workers:
        return equal
    own = hashlib.sha256(first.tobytes()).hexdigest() if equal else ""
    reports = topology.group.agree("a value to update with", own)
    return equal and len(set(reports)) == 1


def _is_value(leaf: Any) -> bool:
    return is_distributed(leaf) or isinstance(leaf, IndexedSlices)
