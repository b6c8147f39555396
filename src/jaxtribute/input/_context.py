"""What input pipelines are told about the workers and replicas they feed."""

from __future__ import annotations

import enum
from typing import NamedTuple

from ..errors import InvalidArgumentError

__all__ = ["InputContext", "InputOptions", "InputReplicationMode"]


class InputReplicationMode(enum.Enum):
    """For whom `distribute_datasets_from_function` makes a dataset.

    >>> jt.InputReplicationMode.PER_WORKER.name
    'PER_WORKER'

    Attributes:
      PER_WORKER: one for each worker; its replicas take elements in turn.
      PER_REPLICA: one for each replica.
    """

    PER_WORKER = "PER_WORKER"
    PER_REPLICA = "PER_REPLICA"


class InputOptions(NamedTuple):
    """Options of `experimental_distribute_dataset` and `distribute_datasets_from_function`.

    >>> jt.InputOptions(experimental_fetch_to_device=False).experimental_fetch_to_device
    False

    Attributes:
      experimental_fetch_to_device: whether elements are brought to the devices ahead of their use;
        otherwise they stay in host memory until then.
      experimental_replication_mode: an `InputReplicationMode`.
      experimental_place_dataset_on_device: whether elements are made on the device itself; only
        with PER_REPLICA and without `experimental_fetch_to_device`. Pipelines run on the host all
        the same, and elements are brought over when they are asked for.
      experimental_per_replica_buffer_size: how many elements wait on each device.
    """

    experimental_fetch_to_device: bool = True
    experimental_replication_mode: InputReplicationMode = InputReplicationMode.PER_WORKER
    experimental_place_dataset_on_device: bool = False
    experimental_per_replica_buffer_size: int = 1

    def check(self) -> None:
        """Refuse combinations that contradict each other, and values of other types."""
        for name, kind in (
            ("experimental_fetch_to_device", bool),
            ("experimental_replication_mode", InputReplicationMode),
            ("experimental_place_dataset_on_device", bool),
            ("experimental_per_replica_buffer_size", int),
        ):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(
                    f"InputOptions: {name} must be of the type {kind.__name__}, got "
                    f"{getattr(self, name)!r}."
                )
        per_replica = self.experimental_replication_mode is InputReplicationMode.PER_REPLICA
        if self.experimental_place_dataset_on_device:
            if not per_replica:
                raise InvalidArgumentError(
                    "experimental_place_dataset_on_device needs a dataset for each replica: set "
                    "experimental_replication_mode to InputReplicationMode.PER_REPLICA."
                )
            if self.experimental_fetch_to_device:
                raise InvalidArgumentError(
                    "experimental_place_dataset_on_device and experimental_fetch_to_device exclude "
                    "each other: set experimental_fetch_to_device=False."
                )
        if self.experimental_per_replica_buffer_size < 1:
            raise InvalidArgumentError(
                "experimental_per_replica_buffer_size must be at least 1, got "
                f"{self.experimental_per_replica_buffer_size}."
            )


class InputContext:
    """What a function that makes datasets is told about the worker it makes one for.

    >>> context = jt.InputContext(
    ...     num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=4
    ... )
    >>> context.get_per_replica_batch_size(64)
    16

    Args:
      num_input_pipelines: how many datasets are made, typically one for each worker.
      input_pipeline_id: which of them this is, from 0.
      num_replicas_in_sync: how many replicas there are, on all workers together.
    """

    def __init__(
        self,
        num_input_pipelines: int = 1,
        input_pipeline_id: int = 0,
        num_replicas_in_sync: int = 1,
    ) -> None:
        self._num_input_pipelines = num_input_pipelines
        self._input_pipeline_id = input_pipeline_id
        self._num_replicas_in_sync = num_replicas_in_sync

    @property
    def num_input_pipelines(self) -> int:
        """How many datasets are made."""
        return self._num_input_pipelines

    @property
    def input_pipeline_id(self) -> int:
        """Which of the datasets this is, from 0."""
        return self._input_pipeline_id

    @property
    def num_replicas_in_sync(self) -> int:
        """How many replicas there are, on all workers together."""
        return self._num_replicas_in_sync

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return how many examples of a global batch each replica receives.

        Raises:
          InvalidArgumentError: when the batch cannot be split evenly.
        """
        replicas = self._num_replicas_in_sync
        size, left_over = divmod(global_batch_size, replicas)
        if left_over:
            raise InvalidArgumentError(
                f"A global batch of {global_batch_size} examples cannot be split evenly over "
                f"{replicas} replicas; {left_over} would be left over. Use a multiple of "
                f"{replicas}, such as {(size + 1) * replicas}."
            )
        return size

    def __repr__(self) -> str:
        return (
            f"InputContext(input pipeline id: {self._input_pipeline_id}, "
            f"total: {self._num_input_pipelines}, "
            f"replicas in sync: {self._num_replicas_in_sync})"
        )
