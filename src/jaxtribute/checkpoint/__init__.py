"""Saving what a training program consists of, and going on from it.

What is kept is found by going through the objects (`_objects`), taken at one moment (`_snapshot`),
and written by one worker and the parameter servers while training goes on (`_background`). A
checkpoint is there when all of it is (`_files`). The way back is in `_status` and `_assigning`, for
what TensorFlow and Keras saved as well (`_foreign`).
"""

from ._checkpoint import Checkpoint
from ._latest import latest_checkpoint
from ._manager import CheckpointManager
from ._options import CheckpointOptions
from ._reader import CheckpointReader, list_variables, load_checkpoint, load_variable

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointReader",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
]
