"""The path under which the reference keeps `jt.coordinator`."""

from ..coordinator import (
    ClusterCoordinator,
    PerWorkerDataset,
    PerWorkerIterator,
    PerWorkerValue,
    PerWorkerValues,
    PerWorkerVariable,
    RemoteValue,
    RestorePolicy,
    experimental_cache_variable_reads,
    experimental_get_current_worker_index,
)

__all__ = [
    "ClusterCoordinator",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValue",
    "PerWorkerValues",
    "PerWorkerVariable",
    "RemoteValue",
    "RestorePolicy",
    "experimental_cache_variable_reads",
    "experimental_get_current_worker_index",
]
