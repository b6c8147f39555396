"""Values that differ, or are kept equal, between replicas."""

from ._base import DistributedValues
from ._indexed_slices import IndexedSlices
from ._mirrored import Mirrored
from ._per_replica import PerReplica

__all__ = ["DistributedValues", "IndexedSlices", "Mirrored", "PerReplica"]
