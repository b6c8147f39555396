"""Strategies of one process, with the methods of `tf.compat.v1`."""

from __future__ import annotations

from .... import strategies
from .._config import ConfigProto
from ._strategy import Strategy

__all__ = ["MirroredStrategy", "OneDeviceStrategy"]


class MirroredStrategy(Strategy, strategies.MirroredStrategy):
    """`jt.MirroredStrategy` for programs that use the methods of `tf.compat.v1`.

    >>> strategy = jt.compat.v1.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     total = jt.Variable(0, aggregation=jt.VariableAggregation.SUM)
    >>> iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(8).batch(4))
    >>> for _ in range(2):
    ...     _ = strategy.experimental_run(lambda x: total.assign_add(x.sum()), iterator)
    >>> total.numpy().item()
    28

    Args:
      devices: devices or their names, such as `["GPU:0", "GPU:1"]`, one a replica; by default all
        accelerators, or all CPU devices where there are none.
      cross_device_ops: how values are combined over devices; by default `NcclAllReduce()`.
    """

    def _fill_in(self, config: ConfigProto) -> None:
        config.isolate_session_state = True


class OneDeviceStrategy(Strategy, strategies.OneDeviceStrategy):
    """`jt.OneDeviceStrategy` for programs that use the methods of `tf.compat.v1`.

    >>> strategy = jt.compat.v1.distribute.OneDeviceStrategy("CPU:1")
    >>> iterator = strategy.make_dataset_iterator(jt.data.Dataset.range(4).batch(4))
    >>> strategy.experimental_run(lambda x: x * 2, iterator)
    Array([0, 2, 4, 6], dtype=int32)

    Args:
      device: the device or its name.
    """
