"""Ways to combine values of several devices."""

from ._all_reduce import HierarchicalCopyAllReduce, NcclAllReduce
from ._base import CrossDeviceOps
from ._one_device import ReductionToOneDevice
from ._workers import CollectiveAllReduce

__all__ = [
    "CollectiveAllReduce",
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
]
