"""Names that the reference keeps under `experimental`."""

from .._options import (
    CollectiveCommunication,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from ..strategies import ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from ..strategies import ParameterServerStrategy
from . import coordinator, partitioners

__all__ = [
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "ValueContext",
    "coordinator",
    "partitioners",
]
