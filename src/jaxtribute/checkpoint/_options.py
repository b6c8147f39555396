"""How checkpoints are saved."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CheckpointOptions"]


@dataclass(frozen=True)
class CheckpointOptions:
    """How a checkpoint is saved.

    >>> import tempfile
    >>> checkpoint = jt.train.Checkpoint(v=jt.Variable(1.0))
    >>> at_once = jt.train.CheckpointOptions(enable_async=False)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = checkpoint.save(directory + "/ckpt", options=at_once)

    Args:
      enable_async: whether `save` returns as soon as the values are taken, and files are written
        while training goes on. Otherwise it returns when the checkpoint is complete.
    """

    enable_async: bool = True
