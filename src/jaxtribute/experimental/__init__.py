"""Names that the reference keeps under `experimental`."""

from .._options import (
    CollectiveCommunication,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from ..strategies import ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy

__all__ = [
    "CollectiveCommunication",
    "CommunicationImplementation",
    "CommunicationOptions",
    "MultiWorkerMirroredStrategy",
    "ValueContext",
]
