"""jaxtribute: `tf.distribute` for JAX.

>>> import jaxtribute as jt
>>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
>>> strategy.num_replicas_in_sync
2
"""

import importlib as _importlib
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

from . import (
    cluster_resolver,
    config,
    data,
    errors,
    metrics,
    nn,
    random,
)
from ._creation import device, variable_creator_scope
from ._options import RunOptions, ValueContext
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
    from . import compat, coordinator, experimental, saved_model, testing, train
    from .compat.v1.distribute import InputIterator
    from .coordinator import Server
    from .strategies import ParameterServerStrategy

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
    "InputIterator",
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
    "ValueContext",
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


_ON_DEMAND = (
    "compat",
    "coordinator",
    "experimental",
    "keras",
    "ray",
    "saved_model",
    "testing",
    "train",
)
_FROM = {
    "InputIterator": ".compat.v1.distribute",
    "ParameterServerStrategy": ".strategies",
    "Server": ".coordinator",
}


def __getattr__(name: str) -> _Any:
    # Imported when they are asked for, as every process of a job imports this, and few use all.
    if name in _ON_DEMAND:
        return _importlib.import_module(f".{name}", __name__)
    if name in _FROM:
        return getattr(_importlib.import_module(_FROM[name], __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
