"""Names that the reference keeps under `experimental`."""

from .. import coordinator
from .._options import (
    CollectiveCommunication,
    CommunicationImplementation,
    CommunicationOptions,
    ValueContext,
)
from ..strategies import ExperimentalMultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from ..strategies import ParameterServerStrategy
from . import partitioners

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
