"""jaxtribute: `tf.distribute` for JAX.

>>> import jaxtribute as jt
>>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
>>> strategy.num_replicas_in_sync
2
"""

import importlib as _importlib
from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from . import (
    cluster_resolver,
    config,
    coordinator,
    data,
    errors,
    experimental,
    metrics,
    nn,
    random,
    testing,
    train,
)
from ._creation import device, variable_creator_scope
from ._options import RunOptions
from ._reduce import ReduceOp, VariableAggregation, VariableSynchronization
from ._specs import PerReplicaSpec, TensorSpec
from ._version import __version__
from .cluster import ClusterSpec
from .collectives import (
    CrossDeviceOps,
    HierarchicalCopyAllReduce,
    NcclAllReduce,
    ReductionToOneDevice,
)
from .coordinator import Server
from .input import (
    DistributedDataset,
    DistributedIterator,
    InputContext,
    InputOptions,
    InputReplicationMode,
)
from .module import Module
from .optimizers import Optimizer
from .sharded import RaggedIds, ShardedVariable
from .strategies import (
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    ReplicaContext,
    Strategy,
    StrategyExtended,
    TPUStrategy,
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from .tracing import Function, function, grad, value_and_grad
from .values import DistributedValues, IndexedSlices, Mirrored, PerReplica
from .variables import MirroredVariable, SyncOnReadVariable, Variable

if _TYPE_CHECKING:
    from . import compat, saved_model

__all__ = [
    "ClusterSpec",
    "CrossDeviceOps",
    "DistributedDataset",
    "DistributedIterator",
    "DistributedValues",
    "Function",
    "HierarchicalCopyAllReduce",
    "IndexedSlices",
    "InputContext",
    "InputOptions",
    "InputReplicationMode",
    "Mirrored",
    "MirroredStrategy",
    "MirroredVariable",
    "Module",
    "MultiWorkerMirroredStrategy",
    "NcclAllReduce",
    "OneDeviceStrategy",
    "Optimizer",
    "ParameterServerStrategy",
    "PerReplica",
    "PerReplicaSpec",
    "RaggedIds",
    "ReduceOp",
    "ReductionToOneDevice",
    "ReplicaContext",
    "RunOptions",
    "Server",
    "ShardedVariable",
    "Strategy",
    "StrategyExtended",
    "SyncOnReadVariable",
    "TPUStrategy",
    "TensorSpec",
    "Variable",
    "VariableAggregation",
    "VariableSynchronization",
    "__version__",
    "cluster_resolver",
    "compat",
    "config",
    "coordinator",
    "data",
    "device",
    "errors",
    "experimental",
    "experimental_set_strategy",
    "function",
    "get_replica_context",
    "get_strategy",
    "grad",
    "has_strategy",
    "in_cross_replica_context",
    "metrics",
    "nn",
    "random",
    "saved_model",
    "testing",
    "train",
    "value_and_grad",
    "variable_creator_scope",
]


def __getattr__(name: str) -> _ModuleType:
    # Imported when they are asked for, as most programs need none of them.
    if name in ("compat", "keras", "ray", "saved_model"):
        return _importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
