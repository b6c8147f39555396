"""Saving when a machine is about to be taken away, and going on later.

`Termination` knows whether this process was asked to end, `Agreement` has all workers stop after
the same call, and the handler saves there. `BackupAndRestore` is training loops around it.
"""

from ._backup import BackupAndRestore
from ._config import TerminationConfig
from ._handler import PreemptionCheckpointHandler
from ._watcher import PreemptionWatcher

__all__ = [
    "BackupAndRestore",
    "PreemptionCheckpointHandler",
    "PreemptionWatcher",
    "TerminationConfig",
]
