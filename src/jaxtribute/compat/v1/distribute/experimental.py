"""Strategies that `tf.compat.v1` keeps under `experimental`, with the methods they have there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .... import cluster, strategies
from ...._options import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
)
from ....cluster import ClusterResolver, Task
from ....remote import _current as current_session
from .._config import ConfigProto
from ._strategy import Strategy

__all__ = [
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "TPUStrategy",
]


class MultiWorkerMirroredStrategy(Strategy, strategies.ExperimentalMultiWorkerMirroredStrategy):
    """`jt.MultiWorkerMirroredStrategy` for programs that use the methods of `tf.compat.v1`.

    >>> strategy = jt.compat.v1.distribute.experimental.MultiWorkerMirroredStrategy()
    >>> ones = strategy.experimental_run(lambda: jnp.ones(()))
    >>> strategy.reduce("SUM", ones) == len(jax.devices())
    Array(True, dtype=bool)

    Args:
      communication: what carries values between workers.
      cluster_resolver: tells which workers there are; by default `TF_CONFIG` does, or Slurm.
    """

    def _fill_in(self, config: ConfigProto) -> None:
        if not self.topology.spans_workers:
            config.isolate_session_state = True
            return
        tasks = [Task.parse(task) for task in self.topology.group.tasks]
        leader, own = tasks[0], tasks[self.topology.group.index]
        config.experimental.collective_group_leader = (
            f"/job:{leader.job}/replica:0/task:{leader.index}"
        )
        config.device_filters = [f"/job:{own.job}/task:{own.index}"]


class ParameterServerStrategy(Strategy, strategies.ParameterServerStrategy):
    """`jt.ParameterServerStrategy` for programs that use the methods of `tf.compat.v1`.

    As there, and unlike in TensorFlow 1, one coordinator runs the program; see
    `jt.coordinator.ClusterCoordinator`.

    >>> with jt.testing.LocalCluster(workers=1, ps=1) as cluster:
    ...     strategy = jt.compat.v1.distribute.experimental.ParameterServerStrategy(
    ...         cluster.resolver
    ...     )
    ...     with strategy.scope():
    ...         v = jt.Variable(1.0)
    ...     print(v.device)
    /job:ps/replica:0/task:0/device:CPU:0

    Args:
      cluster_resolver: tells the addresses of the workers and the servers; by default `TF_CONFIG`
        does, or Slurm.
    """

    def __init__(self, cluster_resolver: ClusterResolver | None = None) -> None:
        super().__init__(cluster_resolver or cluster.default_resolver())

    def _fill_in(self, config: ConfigProto) -> None:
        config.device_filters = ["/job:ps", "/job:worker"]

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, ()


def _arrived() -> ParameterServerStrategy:
    """Return the strategy of the worker this was sent to, with the methods it had where it left."""
    strategy = current_session.session("a ParameterServerStrategy").strategy
    strategy.__class__ = ParameterServerStrategy  # which only adds methods
    return strategy


class TPUStrategy(Strategy, strategies.TPUStrategy):
    """`jt.TPUStrategy` for programs that use the methods of `tf.compat.v1`.

    >>> jt.compat.v1.distribute.experimental.TPUStrategy()
    Traceback (most recent call last):
        ...
    RuntimeError: TPUStrategy needs TPUs, and this process has only CPU devices. ...

    Args:
      tpu_cluster_resolver: where the TPUs are; kept as `cluster_resolver`.
      steps_per_run: accepted for compatibility; a loop inside a `jt.function` takes several steps.
      device_assignment: the TPU devices to use, one a replica; by default all.
    """

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        steps_per_run: int | None = None,
        device_assignment: Sequence[str | jax.Device] | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)

    def _fill_in(self, config: ConfigProto) -> None:
        config.isolate_session_state = True
