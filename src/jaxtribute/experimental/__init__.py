"""Names that the reference keeps under `experimental`."""

from .._options import (
    CollectiveCommunication,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from ..preemption import PreemptionCheckpointHandler, PreemptionWatcher, TerminationConfig
from ..strategies import ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from ..strategies import ParameterServerStrategy
from . import coordinator, partitioners

__all__ = [
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "TerminationConfig",
    "ValueContext",
    "coordinator",
    "partitioners",
]
