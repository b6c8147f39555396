"""Strategies with the methods they have in `tf.compat.v1.distribute`."""

from ...._options import RunOptions
from ...._reduce import ReduceOp
from ....collectives import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from ....coordinator import Server
from ....input import InputContext, InputReplicationMode
from ....strategies import (
    ReplicaContext,
    StrategyExtended,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from . import cluster_resolver, experimental
from ._iterator import InputIterator
from ._loss import get_loss_reduction
from ._strategies import MirroredStrategy, OneDeviceStrategy
from ._strategy import Strategy

__all__ = [
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "InputContext",
    "InputIterator",
    "InputReplicationMode",
    "MirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Server",
    "Strategy",
    "StrategyExtended",
    "cluster_resolver",
    "experimental",
    "experimental_set_strategy",
    "get_loss_reduction",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
