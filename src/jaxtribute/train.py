"""The names under which `tf.train` knows them."""

from ._job import report_progress
from .checkpoint import Checkpoint, CheckpointManager, latest_checkpoint
from .cluster import ClusterSpec
from .evaluation import SidecarEvaluator

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "ClusterSpec",
    "SidecarEvaluator",
    "latest_checkpoint",
    "report_progress",
]
