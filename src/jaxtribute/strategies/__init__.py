"""Strategies: on which devices a program runs, and how they work together."""

from typing import TYPE_CHECKING, Any

from .._context import (
    experimental_set_strategy,
    get_replica_context,
    get_strategy,
    has_strategy,
    in_cross_replica_context,
)
from ._base import Strategy
from ._default import DEFAULT
from ._extended import StrategyExtended
from ._mirrored import MirroredStrategy
from ._multi_worker import ExperimentalMultiWorkerMirroredStrategy, MultiWorkerMirroredStrategy
from ._one_device import OneDeviceStrategy
from ._replica_context import ReplicaContext
from ._tpu import ExperimentalTPUStrategy, TPUStrategy

if TYPE_CHECKING:
    from ._parameter_server import ParameterServerStrategy

__all__ = [
    "DEFAULT",
    "ExperimentalMultiWorkerMirroredStrategy",
    "ExperimentalTPUStrategy",
    "MirroredStrategy",
    "MultiWorkerMirroredStrategy",
    "OneDeviceStrategy",
    "ParameterServerStrategy",
    "ReplicaContext",
    "Strategy",
    "StrategyExtended",
    "TPUStrategy",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]


def __getattr__(name: str) -> Any:
    # Imported when it is asked for, with all that is needed to talk to servers.
    if name == "ParameterServerStrategy":
        from ._parameter_server import ParameterServerStrategy

        return ParameterServerStrategy
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
