"""The names under which `tf.train` knows them."""

from ._job import report_progress
from .checkpoint import (
    Checkpoint,
    CheckpointManager,
    CheckpointOptions,
    CheckpointReader,
    latest_checkpoint,
    list_variables,
    load_checkpoint,
    load_variable,
)
from .cluster import ClusterSpec
from .evaluation import SidecarEvaluator
from .preemption import BackupAndRestore

__all__ = [
    "BackupAndRestore",
    "Checkpoint",
    "CheckpointManager",
    "CheckpointOptions",
    "CheckpointReader",
    "ClusterSpec",
    "SidecarEvaluator",
    "latest_checkpoint",
    "list_variables",
    "load_checkpoint",
    "load_variable",
    "report_progress",
]
