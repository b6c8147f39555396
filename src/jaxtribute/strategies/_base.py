"""What all strategies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import jax
import numpy as np

from .. import _context, _integrations, _tree
from .._jax_compat import is_tracing, movable
from .._options import RunOptions, ValueContext
from .._reduce import ReduceOp
from .._topology import Topology
from ..collectives import CrossDeviceOps
from ..collectives._base import scale
from ..collectives._gather import gather
from ..data import Dataset
from ..errors import FailedPreconditionError
from ..input import (
    DistributedDataset,
    InputContext,
    InputOptions,
    InputSetting,
    distribute,
    distribute_from_function,
)
from ..sharded import ShardedVariable
from ..tracing import compiled
from ..values import DistributedValues, IndexedSlices, Mirrored, PerReplica
from ..values._regroup import check_components, check_numbers, regroup, select, stack_traced
from ..variables import Variable, _frames
from ..variables._distributed import DistributedVariable
from ..variables._spec import VariableSpec
from . import _reductions
from ._exchange import check_common_value
from ._extended import StrategyExtended
from ._replica_context import refuse_slices
from ._scope import Scope

__all__ = ["Strategy"]


def _is_value(leaf: Any) -> bool:
    return isinstance(leaf, (DistributedValues, IndexedSlices))


class Strategy(ABC):
    """Decides on which devices a training program runs, and how they work together.

    Not created itself; see `MirroredStrategy`, `OneDeviceStrategy` and `get_strategy`.
    """

    def __init__(self, topology: Topology, cross_device_ops: CrossDeviceOps) -> None:
        self.topology = topology
        self.cross_device_ops = cross_device_ops
        self._extended = StrategyExtended(self)

    # --- What it is ------------------------------------------------------------------------

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas over which gradients are added up."""
        return self.topology.num_replicas

    @property
    def extended(self) -> StrategyExtended:
        """Further methods, for libraries rather than for training programs."""
        return self._extended

    @property
    def cluster_resolver(self) -> Any | None:
        """The cluster resolver of a strategy for several workers; otherwise None."""
        return None

    # --- Scope and replicas ----------------------------------------------------------------

    def scope(self) -> AbstractContextManager[Strategy]:
        """Make this strategy the one in force, so that variables are created its way.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     v = jt.Variable(1.0)
        >>> v
        MirroredVariable:{
          0: <jt.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,
          1: <jt.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>
        }

        Returns:
          A context manager, which can be entered again, also inside itself.

        Raises:
          RuntimeError: on entering inside a replica or under another strategy.
        """
        return Scope(self)

    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: RunOptions | None = None,
    ) -> Any:
        """Call a function on each replica.

        Inside a `jt.function`, or when `fn` is one, all replicas are one compiled program, traced
        once. Otherwise `fn` is called once a replica, as plain Python.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.run(jt.function(lambda x: x * 2), args=(jnp.float32(3.0),))
        PerReplica:{
          0: Array(6., dtype=float32),
          1: Array(6., dtype=float32)
        }

        Args:
          fn: the function. It may ask `get_replica_context()` where it runs.
          args: positional arguments; of distributed values in them, each replica gets its own
            component. Everything else is passed as it is.
          kwargs: keyword arguments, likewise.
          options: accepted for compatibility; XLA needs none.

        Returns:
          What the replicas returned, of the same structure: `PerReplica` where they computed
          something, the thing itself where all returned the same object or Python constant, or
          where there is one replica.

        Raises:
          ValueError: when `args` is not a list or tuple.
          RuntimeError: inside a replica or under another strategy.
          Exception: whatever `fn` raises, after all replicas have stopped.
        """
        if not isinstance(args, (list, tuple)):
            raise ValueError(
                "positional args must be a list or tuple, got "
                f"{type(args).__name__} {args!r}. For one argument: args=(x,)."
            )
        _integrations.load()  # which tell what their objects among the arguments are
        with _context.cross_replica(self, "Strategy.run"):
            return self._run(compiled(fn), tuple(args), dict(kwargs or {}))

    @abstractmethod
    def _run(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...

    # --- Combining -------------------------------------------------------------------------

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any) -> Any:
        """Combine the replicas' values into one.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> batch = np.arange(8.0).reshape(2, 4)
        >>> losses = strategy.experimental_distribute_values_from_function(
        ...     lambda ctx: batch[ctx.replica_id_in_sync_group]
        ... )
        >>> strategy.reduce("SUM", losses, axis=None)
        Array([ 4.,  6.,  8., 10.], dtype=float32)
        >>> strategy.reduce("MEAN", losses, axis=0)
        Array(3.5, dtype=float32)

        Args:
          reduce_op: a `ReduceOp` or its name.
          value: a distributed value, or a nested structure of them.
          axis: the axis, or axes, of each replica's value to reduce along as well, typically 0,
            the batch; shapes may then differ along it, and a mean counts every element once.
            None combines over the replicas only.

        Returns:
          An array, or the structure with arrays for leaves.

        Raises:
          ValueError: for an unknown op, an axis out of range, shapes that differ, or SUM of a value
            that is not distributed.
          TypeError: when `axis` is no axis.
          RuntimeError: inside a replica or under another strategy.
        """
        with _context.cross_replica(self, "Strategy.reduce"):
            op = ReduceOp.from_value(reduce_op)
            axes = _reductions.parse_axis(axis)
            if axes is not None and _is_list_of_numbers(value):
                value = np.asarray(value)
            return _tree.map_leaves(
                lambda leaf: self._reduce_leaf(op, leaf, axes), value, _is_value
            )

    def _reduce_leaf(self, op: ReduceOp, leaf: Any, axes: tuple[int, ...] | None) -> Any:
        if leaf is None:
            return None
        if isinstance(leaf, DistributedVariable):
            leaf = leaf.as_value()
        if isinstance(leaf, Mirrored):
            if axes is None:
                return self.cross_device_ops.reduce(op, leaf, self._current_device())
            leaf = leaf.component(0)
        if not isinstance(leaf, (PerReplica, IndexedSlices)):
            return self._reduce_same_everywhere(op, leaf, axes)
        if axes is None:
            if isinstance(leaf, PerReplica) and leaf.total is not None:
                return scale(op, leaf.total, self.num_replicas_in_sync)
            return self.extended.reduce_to(op, leaf, self._current_device())
        if isinstance(leaf, IndexedSlices):
            raise ValueError(
                "jt.IndexedSlices cannot be reduced along an axis: their rows have no fixed place. "
                "Use axis=None, or convert them with to_dense()."
            )
        return _reductions.along_axes(
            op, leaf, axes, self.topology, lambda v: self.reduce(ReduceOp.SUM, v, axis=None)
        )

    def _reduce_same_everywhere(self, op: ReduceOp, value: Any, axes: Any) -> Any:
        count = self.num_replicas_in_sync
        if axes is not None or count == 1:
            total = _reductions.single_value(op, value, axes)
            return total * count if op is ReduceOp.SUM and count > 1 else total
        check_common_value(op, value, count)
        return value

    def gather(self, value: Any, axis: int) -> Any:
        """Concatenate the replicas' values along an axis.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> ids = strategy.run(
        ...     lambda: jnp.full((1,), jt.get_replica_context().replica_id_in_sync_group)
        ... )
        >>> strategy.gather(ids, axis=0)
        Array([0, 1], dtype=int32)

        Args:
          value: a distributed value or a variable, of which the copies of all replicas are
            concatenated, or a nested structure of them; shapes may differ along `axis` only. A
            value that is not distributed is returned as it is.
          axis: the axis, at least 0 and less than the rank.

        Returns:
          An array, or the structure with arrays for leaves.

        Raises:
          NotImplementedError: for `IndexedSlices`.
          ValueError: for scalars, shapes that differ elsewhere, or an axis out of range.
          RuntimeError: inside a replica, where `ReplicaContext.all_gather` does it.
        """
        refuse_slices("Strategy.gather", _leaves(value))
        side = _context.current()
        if side.strategy is self and side.replica_context is not None and _context.has_strategy():
            raise RuntimeError(
                "Strategy.gather was called inside a replica; use "
                "get_replica_context().all_gather there. It requires being in cross-replica "
                "context, that is outside the function given to `run`."
            )
        with _context.cross_replica(self, "Strategy.gather"):
            return _tree.map_leaves(lambda leaf: self._gather_leaf(leaf, axis), value, _is_value)

    def _gather_leaf(self, leaf: Any, axis: int) -> Any:
        if isinstance(leaf, DistributedVariable):
            leaf = leaf.as_per_replica()
        elif isinstance(leaf, (Variable, ShardedVariable)):
            return leaf.value()
        elif isinstance(leaf, Mirrored):
            leaf = leaf.as_per_replica()
        if not isinstance(leaf, PerReplica):
            return leaf
        return gather(leaf, axis, self.topology, self._current_device())

    # --- Distributed values ----------------------------------------------------------------

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return what each replica of this process holds of a value.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.experimental_local_results(
        ...     strategy.run(lambda: jt.get_replica_context().replica_id_in_sync_group)
        ... )
        (0, 1)

        Args:
          value: a distributed value, a variable, or a nested structure of them.

        Returns:
          A tuple with one value a replica; of a single value that is not distributed, a tuple of it
          alone. They can be combined, as in `jnp.concatenate(results)`, for which JAX moves them.
        """
        if isinstance(value, Variable):
            return tuple(getattr(value, "values", (value,)))
        leaves, structure = _tree.flatten(value)
        if len(leaves) == 1 and leaves[0] is value and not _has_components(value):
            return (value,)
        copies = [
            PerReplica(leaf.values) if isinstance(leaf, DistributedVariable) else leaf
            for leaf in leaves
        ]
        value = structure.unflatten(copies)
        self._refuse_traced(leaves)
        check_components(value, self.topology)
        results = [select(i, value) for i in range(self.topology.num_local)]
        return tuple(_tree.map_leaves(movable, result) for result in results)

    def _refuse_traced(self, leaves: list[Any]) -> None:
        traced = any(isinstance(leaf, PerReplica) and leaf.is_traced for leaf in leaves)
        if traced and self.topology.spans_workers:
            raise FailedPreconditionError(
                "experimental_local_results was called inside a jt.function, which is one program "
                "for all workers and cannot tell which of them it runs on. Return the value, and "
                "call it outside."
            )

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """Make a distributed value by calling a function once for each replica.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.experimental_distribute_values_from_function(
        ...     lambda ctx: 10 * ctx.replica_id_in_sync_group
        ... )
        PerReplica:{
          0: 0,
          1: 10
        }

        Args:
          value_fn: called with a `ValueContext`; returns an array, a number, or a nested structure.

        Returns:
          A `PerReplica`, or the structure with such leaves.

        Raises:
          RuntimeError: inside a replica or under another strategy.
        """
        with _context.cross_replica(self, "experimental_distribute_values_from_function"):
            topology, count = self.topology, self.num_replicas_in_sync
            _frames.current().touch(topology)
            if topology.spans_workers and is_tracing():
                values = [value_fn(ValueContext(i, count)) for i in range(count)]
                return stack_traced(values, topology)
            ids = range(topology.first_local, topology.first_local + topology.num_local)
            values = [value_fn(ValueContext(i, count)) for i in ids]
            check_numbers(values, "experimental_distribute_values_from_function")
            return regroup(values, topology, always_wrap=True)

    # --- Input -----------------------------------------------------------------------------

    @cached_property
    def _input_setting(self) -> InputSetting:
        """The devices and the place of this process among those that share the input."""
        topology, group = self.topology, self.topology.group
        context = InputContext(len(group.tasks), group.index, topology.num_replicas)
        return InputSetting(topology, context, group if topology.spans_workers else None)

    def experimental_distribute_dataset(
        self, dataset: Any, options: InputOptions | None = None
    ) -> DistributedDataset:
        """Divide a dataset of global batches between the replicas.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = jt.data.Dataset.range(4).batch(2)
        >>> for x in strategy.experimental_distribute_dataset(dataset):
        ...     print(strategy.reduce("SUM", x, axis=0))
        1
        5

        Each batch is divided between all replicas; with several workers, each reads its part, as
        `jt.data.AutoShardPolicy` says. The elements are brought to the devices in the background.

        Args:
          dataset: a `jt.data.Dataset`; a dataset of Grain, tf.data or PyTorch; any iterable of
            arrays that can be read again; or arrays, as one batch.
          options: how the elements are delivered.

        Returns:
          A `DistributedDataset`.

        Raises:
          TypeError: when `dataset` cannot be read, or only once.
          ValueError: when it cannot be divided: it has no batches, fewer files than workers for
            FILE sharding, or no hint for HINT.
        """
        with _context.cross_replica(self, "experimental_distribute_dataset"):
            return distribute(dataset, self._input_setting, options)

    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Any], options: InputOptions | None = None
    ) -> DistributedDataset:
        """Give each replica the next element of a dataset that a function makes for each worker.

        >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def dataset_fn(context):
        ...     size = context.get_per_replica_batch_size(4)
        ...     dataset = jt.data.Dataset.range(8).batch(size)
        ...     return dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        >>> next(iter(strategy.distribute_datasets_from_function(dataset_fn)))
        PerReplica:{
          0: Array([0, 1], dtype=int32),
          1: Array([2, 3], dtype=int32)
        }

        Nothing is divided: batches are those of one replica, and the function decides what each
        worker reads.

        Args:
          dataset_fn: called with an `InputContext`; returns anything
            `experimental_distribute_dataset` accepts.
          options: how the elements are delivered, and for whom datasets are made.

        Returns:
          A `DistributedDataset`.
        """
        with _context.cross_replica(self, "distribute_datasets_from_function"):
            return distribute_from_function(dataset_fn, self._input_setting, options)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function
    """The name that `distribute_datasets_from_function` had first."""

    def experimental_make_numpy_dataset(self, numpy_input: Any, session: Any = None) -> Dataset:
        """Return the dataset of the rows of arrays, for programs written for the v1 API.

        >>> dataset = jt.get_strategy().experimental_make_numpy_dataset(np.arange(3))
        >>> print(*dataset)
        0 1 2

        Args:
          numpy_input: an array, or a tuple or dict of arrays; a list of arrays is stacked.
          session: accepted for compatibility.
        """
        return Dataset.from_tensor_slices(numpy_input)

    # --- Variables -------------------------------------------------------------------------

    def create_variable(self, **spec: Any) -> Variable:
        """Create a variable in the way of this strategy; called by `Variable`."""
        return self._create_variable(VariableSpec.resolve(**spec))

    @abstractmethod
    def _create_variable(self, spec: VariableSpec) -> Variable: ...

    def owns(self, variable: Any) -> bool:
        """Tell whether a variable was created in this strategy's scope."""
        return isinstance(variable, Variable) and variable.distribute_strategy is self

    # --- Python's protocols ----------------------------------------------------------------

    def _current_device(self) -> jax.Device:
        return _context.device_in_scope() or self.topology.local_devices[0]

    def __copy__(self) -> Strategy:
        raise RuntimeError(
            f"{type(self).__name__} must not be copied: its variables belong to the original."
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Strategy:
        duplicate = object.__new__(type(self))
        vars(duplicate).update(vars(self))
        duplicate._extended = StrategyExtended(duplicate)
        memo[id(self)] = duplicate
        return duplicate

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: it is bound to the devices of this process. Create a "
            "strategy in each process, and pickle values; to keep variables, use "
            "jt.train.Checkpoint."
        )

    def __repr__(self) -> str:
        devices = ", ".join(f"{d.platform.upper()}:{d.id}" for d in self.topology.devices)
        return f"<{type(self).__name__} on {devices}>"


def _leaves(value: Any) -> list[Any]:
    return _tree.flatten(value, _is_value)[0]


def _is_list_of_numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(
        isinstance(leaf, (bool, int, float, complex)) for leaf in _leaves(value)
    )


def _has_components(leaf: Any) -> bool:
    return isinstance(leaf, (DistributedValues, DistributedVariable))
