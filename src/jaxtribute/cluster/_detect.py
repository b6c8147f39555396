"""The resolver for a process that was not given one."""

from __future__ import annotations

import os

from ._resolver import ClusterResolver
from ._slurm import SlurmClusterResolver
from ._tf_config import TFConfigClusterResolver

__all__ = ["default_resolver"]


def default_resolver() -> ClusterResolver:
    """Return what describes the cluster this process was started in.

    That is `TF_CONFIG` where it is set, else Slurm in a step of several tasks, and otherwise
    nothing: the program runs alone.
    """
    if "TF_CONFIG" not in os.environ and _slurm_tasks() > 1:
        return SlurmClusterResolver()
    return TFConfigClusterResolver()


def _slurm_tasks() -> int:
    # Only `srun` sets it: a batch script itself is one process, however many tasks the job has.
    tasks = os.environ.get("SLURM_STEP_NUM_TASKS", "")
    return int(tasks) if tasks.isdecimal() else 0
