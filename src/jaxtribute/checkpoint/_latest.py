"""Finding the newest checkpoint."""

from __future__ import annotations

import os

from . import _background, _files

__all__ = ["latest_checkpoint"]


def latest_checkpoint(checkpoint_dir: str | os.PathLike[str]) -> str | None:
    """Return the path of the newest complete checkpoint of a directory, None if there is none.

    Waits for those that this process is still writing there. One that is damaged is the newest all
    the same: restoring it raises `DataLossError`, and nothing goes back to an older one by itself.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     checkpoint = jt.train.Checkpoint(v=jt.Variable(1.0))
    ...     before = jt.train.latest_checkpoint(directory)
    ...     path = checkpoint.save(directory + "/ckpt")
    ...     print(before, jt.train.latest_checkpoint(directory) == path)
    None True

    Args:
      checkpoint_dir: the directory in which the checkpoints are.
    """
    _background.finish(checkpoint_dir)
    found = _files.complete(checkpoint_dir)
    return found[-1].path if found else None
