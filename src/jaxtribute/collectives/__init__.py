"""Ways to combine values of several devices."""

from ._all_reduce import HierarchicalCopyAllReduce, NcclAllReduce
from ._base import CrossDeviceOps
from ._one_device import ReductionToOneDevice

__all__ = [
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
]
