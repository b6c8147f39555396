"""Datasets that are divided on the workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


class PerWorkerInput:
    """A dataset to be distributed by each worker for itself.

    On the coordinator there is nothing to iterate: give it to
    `ClusterCoordinator.create_per_worker_dataset`.
    """

    def __init__(self, strategy: Any, method: str, source: Any, options: Any) -> None:
        self._strategy = strategy
        self._method = method
        self._source = source
        self._options = options

    def build(self) -> Any:
        """Return the distributed dataset, on a worker."""
        return getattr(self._strategy, self._method)(self._source, self._options)

    def __iter__(self) -> Iterator[Any]:
        raise ValueError(
            "The dataset was distributed by a ParameterServerStrategy, and cannot be iterated on "
            "the coordinator. Pass it to ClusterCoordinator.create_per_worker_dataset, and the "
            "iterator of what that returns to a scheduled function."
        )
