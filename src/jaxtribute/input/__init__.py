"""Distributed input: datasets divided between workers and replicas."""

from ._context import InputContext, InputOptions, InputReplicationMode
from ._dataset import DistributedDataset, InputSetting, distribute, distribute_from_function
from ._iterator import DistributedIterator

__all__ = [
    "DistributedDataset",
    "DistributedIterator",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "InputSetting",
    "distribute",
    "distribute_from_function",
]
