"""Remote execution on a parameter-server cluster."""

from ..remote import PerWorkerVariable
from ._cached_reads import experimental_cache_variable_reads
from ._coordinator import ClusterCoordinator
from ._current_worker import experimental_get_current_worker_index
from ._per_worker import PerWorkerDataset, PerWorkerIterator, PerWorkerValue, PerWorkerValues
from ._remote_value import RemoteValue
from ._restore_policy import RestorePolicy
from ._server import Server

__all__ = [
    "ClusterCoordinator",
    "PerWorkerDataset",
    "PerWorkerIterator",
    "PerWorkerValue",
    "PerWorkerValues",
    "PerWorkerVariable",
    "RemoteValue",
    "RestorePolicy",
    "Server",
    "experimental_cache_variable_reads",
    "experimental_get_current_worker_index",
]
