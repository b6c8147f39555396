"""Names that the reference keeps under `experimental`."""

from .._options import (
    CollectiveCommunication,
    CollectiveHints,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from ..preemption import PreemptionCheckpointHandler, PreemptionWatcher, TerminationConfig
from ..strategies import ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from ..strategies import ExperimentalTPUStrategy as TPUStrategy
from ..strategies import ParameterServerStrategy
from . import coordinator, partitioners

__all__ = [
    "CollectiveCommunication",
    "CollectiveHints",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "TPUStrategy",
    "TerminationConfig",
    "ValueContext",
    "coordinator",
    "partitioners",
]
