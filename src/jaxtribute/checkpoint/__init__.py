"""Saving what a training program consists of, and going on from it.

What is kept is found by going through the objects (`_objects`), copied to the host (`_snapshot`),
and written by one worker (`_arrays`, `_files`). The ways back are in `_status`.
"""

from ._checkpoint import Checkpoint
from ._latest import latest_checkpoint
from ._manager import CheckpointManager

__all__ = ["Checkpoint", "CheckpointManager", "latest_checkpoint"]
