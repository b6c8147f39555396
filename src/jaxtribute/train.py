"""The names under which `tf.train` knows them."""

from ._job import report_progress
from .checkpoint import Checkpoint, CheckpointManager, latest_checkpoint
from .cluster import ClusterSpec

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "ClusterSpec",
    "latest_checkpoint",
    "report_progress",
]
