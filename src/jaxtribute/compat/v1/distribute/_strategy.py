"""The methods that strategies have in `tf.compat.v1` only."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from .... import strategies
from ...._reduce import ReduceOp
from ....errors import InvalidArgumentError, OutOfRangeError
from ....input import DistributedDataset, InputContext, InputReplicationMode
from ....input._autoshard import global_batch_size
from ....input._sources import as_op
from .._config import ConfigProto
from .._deprecation import tell
from ._iterator import InputIterator

__all__ = ["Strategy"]


class Strategy(strategies.Strategy):
    """A strategy with the methods of `tf.compat.v1.distribute.Strategy`.

    Not created itself; see `jt.compat.v1.distribute.MirroredStrategy`. It has everything that
    `jt.Strategy` has, and is accepted wherever one is.

    >>> strategy = jt.compat.v1.distribute.OneDeviceStrategy("CPU:0")
    >>> isinstance(strategy, jt.compat.v1.distribute.Strategy), isinstance(strategy, jt.Strategy)
    (True, True)
    """

    def experimental_run(self, fn: Callable[..., Any], input_iterator: Any = None) -> Any:
        """Call a function on each replica, with its part of the next element of an iterator.

        >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(4).batch(4))
        >>> strategy.experimental_run(lambda x: x * 2, iterator)
        PerReplica:{
          0: Array([0, 2], dtype=int32),
          1: Array([4, 6], dtype=int32)
        }

        Deprecated: call `strategy.run(fn, args=(next(iterator),))`.

        Args:
          fn: the function. Its argument has the structure of the iterator's elements.
          input_iterator: of which one element is taken; without it, `fn` is called without
            arguments.

        Returns:
          What the replicas returned, as from `run`.

        Raises:
          OutOfRangeError: at the end of the iterator.
          TypeError: when `input_iterator` is something else.
        """
        tell("experimental_run", "Use strategy.run(fn, args=(next(iterator),)).")
        if input_iterator is None:
            return self.run(fn)
        if not hasattr(input_iterator, "get_next"):
            raise TypeError(
                "experimental_run takes an iterator of make_dataset_iterator or "
                f"make_input_fn_iterator, got {input_iterator!r}. Values of the replicas go to "
                "strategy.run(fn, args=(value,))."
            )
        return self.run(fn, args=(input_iterator.get_next(),))

    def make_dataset_iterator(self, dataset: Any) -> InputIterator:
        """Return an iterator that divides the global batches of a dataset between the replicas.

        >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.make_dataset_iterator(jt.data.Dataset.range(6).batch(3))
        Traceback (most recent call last):
            ...
        jaxtribute.errors.InvalidArgumentError: Batches of 3 examples cannot be divided evenly ...

        Deprecated: iterate over `strategy.experimental_distribute_dataset(dataset)`, which divides
        batches of any size.

        Args:
          dataset: as for `experimental_distribute_dataset`. The last batch may be smaller.

        Returns:
          An `InputIterator`.

        Raises:
          InvalidArgumentError: when there are no batches, or they cannot be divided evenly.
          TypeError: when `dataset` cannot be read, or only once.
          ValueError: on the coordinator of parameter servers, where nothing is iterated.
        """
        tell(
            "make_dataset_iterator", "Use iter(strategy.experimental_distribute_dataset(dataset))."
        )
        distributed = self.experimental_distribute_dataset(dataset)
        _check_division(global_batch_size(as_op(dataset)), self.num_replicas_in_sync)
        return _iterator(distributed)

    def make_input_fn_iterator(
        self,
        input_fn: Callable[[InputContext], Any],
        replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER,
    ) -> InputIterator:
        """Return an iterator over a dataset that a function makes for each worker.

        >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> def input_fn(context):
        ...     return jt.data.Dataset.range(8).batch(context.get_per_replica_batch_size(4))
        >>> strategy.make_input_fn_iterator(input_fn).get_next()
        PerReplica:{
          0: Array([0, 1], dtype=int32),
          1: Array([2, 3], dtype=int32)
        }

        Deprecated: iterate over `strategy.distribute_datasets_from_function(input_fn)`.

        Args:
          input_fn: called with an `InputContext`; returns a dataset with the batches of a replica,
            or a function without arguments that returns the next one, until `OutOfRangeError`.
          replication_mode: `InputReplicationMode.PER_WORKER`; there is no other.

        Returns:
          An `InputIterator`.

        Raises:
          ValueError: for another replication mode, and on the coordinator of parameter servers,
            where nothing is iterated.
        """
        tell(
            "make_input_fn_iterator",
            "Use iter(strategy.distribute_datasets_from_function(input_fn)).",
        )
        if replication_mode is not InputReplicationMode.PER_WORKER:
            raise InvalidArgumentError(
                "make_input_fn_iterator makes a dataset for each worker, so replication_mode must "
                f"be InputReplicationMode.PER_WORKER, got {replication_mode!r}. "
                "distribute_datasets_from_function can make one for each replica, with "
                "options=jt.InputOptions(experimental_replication_mode=...)."
            )

        def dataset_fn(context: InputContext) -> Any:
            made = input_fn(context)
            return _Calls(made) if callable(made) and not hasattr(made, "__iter__") else made

        return _iterator(self.distribute_datasets_from_function(dataset_fn))

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any = None) -> Any:
        """Combine the replicas' values into one, over the replicas only unless an axis is given.

        >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.reduce("SUM", strategy.run(lambda: jnp.ones(2)))
        Array([2., 2.], dtype=float32)

        Args:
          reduce_op: a `ReduceOp` or its name.
          value: a distributed value, or a nested structure of them.
          axis: as for `jt.Strategy.reduce`.
        """
        return super().reduce(reduce_op, value, axis)

    def update_config_proto(self, config_proto: ConfigProto) -> ConfigProto:
        """Return a copy of a `ConfigProto` in which this strategy has filled in what it does.

        >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.update_config_proto(jt.compat.v1.ConfigProto()).isolate_session_state
        True

        Deprecated: there are no sessions, so nothing has to be given to one.

        Args:
          config_proto: is not changed.

        Raises:
          TypeError: when it is something else.
        """
        tell("update_config_proto", "There are no sessions to configure: leave it out.")
        if not isinstance(config_proto, ConfigProto):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"update_config_proto takes a jt.compat.v1.ConfigProto, got {config_proto!r}."
            )
        updated = copy.deepcopy(config_proto)
        self._fill_in(updated)
        return updated

    def _fill_in(self, config: ConfigProto) -> None:
        """Write down what this strategy does; by default there is nothing to say."""


def _check_division(batch_size: int, replicas: int) -> None:
    size, left_over = divmod(batch_size, replicas)
    if left_over:
        raise InvalidArgumentError(
            f"Batches of {batch_size} examples cannot be divided evenly between {replicas} "
            f"replicas. Use a multiple of {replicas}, such as {(size + 1) * replicas}; or "
            "make_input_fn_iterator, whose function makes the batches of each replica; or "
            "experimental_distribute_dataset, which gives some replicas less."
        )


def _iterator(dataset: Any) -> InputIterator:
    if not isinstance(dataset, DistributedDataset):
        iter(dataset)  # refused: that of parameter servers is iterated on their workers
    return InputIterator(dataset)


class _Calls:
    """What a function returns, each time it is called, as something to be iterated over."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self._fn = fn

    def __iter__(self) -> Iterator[Any]:
        while True:
            try:
                element = self._fn()
            except OutOfRangeError:
                return
            yield element
