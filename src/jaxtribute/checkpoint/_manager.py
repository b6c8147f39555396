"""Keeping the newest checkpoints of a training program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from .._group import Group
from ..errors import DataLossError
from . import _background, _files
from ._checkpoint import Checkpoint, group_of, save_as
from ._files import Known
from ._options import CheckpointOptions
from ._together import together

__all__ = ["CheckpointManager"]


class CheckpointManager:
    """Saves checkpoints in a directory, deletes old ones, and goes on from the newest.

    >>> import os, tempfile
    >>> v = jt.Variable(0.0)
    >>> checkpoint = jt.train.Checkpoint(v=v)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     manager = jt.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
    ...     for value in (1.0, 2.0, 3.0):
    ...         _ = v.assign(value).numpy(), manager.save()
    ...     manager.wait_until_finished()
    ...     [os.path.basename(path) for path in manager.checkpoints]
    ['ckpt-2', 'ckpt-3']

    With several workers, each makes a manager, and all call its methods at the same time.

    Args:
      checkpoint: what is saved.
      directory: where; it is made if it is not there. With several workers, on a file system they
        share.
      max_to_keep: how many checkpoints are kept, the newest ones; None keeps all. One that is
        known to be damaged is not counted, and never deleted.
      keep_checkpoint_every_n_hours: of those that would be deleted, keep one from each such stretch
        of time.
      checkpoint_name: what the names of checkpoints begin with.
      step_counter: a variable or number of the checkpoint that counts steps, or a function that
        returns the count; needed for `checkpoint_interval`.
      checkpoint_interval: how many steps `save` lets pass between checkpoints.
      init_fn: called by `restore_or_initialize` when there is no checkpoint.

    Raises:
      ValueError: for numbers that cannot be, or an interval without a counter.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float | None = None,
        checkpoint_name: str = "ckpt",
        step_counter: Any = None,
        checkpoint_interval: int | None = None,
        init_fn: Callable[[], Any] | None = None,
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise ValueError(
                f"max_to_keep has to be at least 1, got {max_to_keep}. None keeps all checkpoints."
            )
        if checkpoint_interval is not None and step_counter is None:
            raise ValueError(
                f"checkpoint_interval={checkpoint_interval} needs a step_counter that says how "
                "many steps were made, such as optimizer.iterations."
            )
        if os.sep in checkpoint_name or not checkpoint_name:
            raise ValueError(
                f"checkpoint_name is the beginning of a name in the directory, such as 'ckpt', "
                f"got {checkpoint_name!r}."
            )
        self._checkpoint = checkpoint
        self._directory = os.fspath(directory)
        self._max_to_keep = max_to_keep
        self._keep_every = keep_checkpoint_every_n_hours
        self._name = checkpoint_name
        self._step_counter = step_counter
        self._interval = checkpoint_interval
        self._init_fn = init_fn
        self._began = time.time()
        self._saved_step: int | None = None
        self._refused = 0  # the highest number there was when the newest could not be restored
        self._checkpoints = self._existing()

    @property
    def checkpoint(self) -> Checkpoint:
        """What is saved."""
        return self._checkpoint

    @property
    def directory(self) -> str:
        """Where checkpoints are saved."""
        return self._directory

    @property
    def checkpoint_interval(self) -> int | None:
        """How many steps `save` lets pass between checkpoints."""
        return self._interval

    @property
    def checkpoints(self) -> list[str]:
        """The paths of the checkpoints that are kept, oldest first.

        Those kept because of `keep_checkpoint_every_n_hours` are not among them, damaged ones are.
        """
        return list(self._checkpoints)

    @property
    def latest_checkpoint(self) -> str | None:
        """The path of the newest checkpoint; None if there is none."""
        return self._checkpoints[-1] if self._checkpoints else None

    def save(
        self,
        checkpoint_number: Any = None,
        check_interval: bool = True,
        options: CheckpointOptions | None = None,
    ) -> str | None:
        """Save, and delete checkpoints that are not to be kept any longer.

        Args:
          checkpoint_number: the number in its name, such as the step; by default checkpoints are
            counted.
          check_interval: whether to do nothing when less than `checkpoint_interval` steps were
            made since the last one.
          options: as for `Checkpoint.save`.

        Returns:
          The path of the checkpoint; None if none was due.

        Raises:
          Exception: as `Checkpoint.save`.
        """
        step = self._step()
        if check_interval and not self._is_due(step):
            return None
        prefix = os.path.join(self._directory, self._name)
        counted = self._checkpoint.save_counter + 1
        number = counted if checkpoint_number is None else int(checkpoint_number)
        if checkpoint_number is None:
            number = counted = _files.free_number(prefix, max(counted, self._refused + 1))
        path, group = save_as(
            self._checkpoint, f"{prefix}-{number}", counted, options, afterwards=self._sweep
        )
        self._saved_step = step
        self._checkpoints = _by_chief(group, "count checkpoints", lambda: self._kept_with(path))
        return path

    def wait_until_finished(self) -> None:
        """Wait until everything that was saved is complete; with several workers, all do.

        Raises:
          Exception: as `Checkpoint.wait_until_finished`.
        """
        self._checkpoint.wait_until_finished()

    def restore_or_initialize(self) -> str | None:
        """Restore the newest checkpoint; if there is none, call `init_fn`.

        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     checkpoint = jt.train.Checkpoint(v=jt.Variable(0.0))
        ...     manager = jt.train.CheckpointManager(
        ...         checkpoint, directory, init_fn=lambda: print("from the beginning")
        ...     )
        ...     manager.restore_or_initialize()
        from the beginning

        Returns:
          The path of the checkpoint; None if there is none.

        Raises:
          DataLossError: when the newest checkpoint is damaged; it never goes back to an older one.
          Exception: as `Checkpoint.restore`.
        """
        group = group_of(self._checkpoint)
        self._checkpoints = _by_chief(group, "look for checkpoints", self._existing)
        latest = self.latest_checkpoint
        if latest is not None:
            try:
                self._checkpoint.restore(latest)
            except DataLossError:  # should the program go on, it is to replace none of them
                self._refused = max(map(_number, self._checkpoints))
                raise
            self._refused = 0
            self._saved_step = self._step()
        elif self._init_fn is not None:
            self._init_fn()
        return latest

    # --- Decisions -------------------------------------------------------------------------

    def _step(self) -> int | None:
        counter = self._step_counter
        if counter is None:
            return None
        count: Any = counter() if callable(counter) else counter
        return int(count)

    def _is_due(self, step: int | None) -> bool:
        if self._interval is None or step is None or self._saved_step is None:
            return True
        return step - self._saved_step >= self._interval

    def _existing(self) -> list[str]:
        _background.finish(self._directory)
        return [known.path for known in self._complete() if not known.commit.preserved]

    def _complete(self) -> list[Known]:
        return _files.complete(self._directory, self._name)

    def _kept_with(self, new: str) -> list[str]:
        """Return what is kept once a new one is complete, and old ones are deleted."""
        others = [k for k in self._complete() if not k.commit.preserved and k.path != new]
        superfluous = 0
        if self._max_to_keep is not None:
            superfluous = 1 + sum(not _files.is_damaged(k) for k in others) - self._max_to_keep
        kept: list[str] = []
        for known in others:
            if superfluous > 0 and not _files.is_damaged(known):
                superfluous -= 1
            else:
                kept.append(known.path)
        return [*kept, new]

    def _sweep(self) -> None:
        if self._max_to_keep is None:
            return
        found = [known for known in self._complete() if not _files.is_damaged(known)]
        preserved = [known.commit.saved_at for known in found if known.commit.preserved]
        managed = [(k.path, k.commit.saved_at) for k in found if not k.commit.preserved]
        superfluous = managed[: -self._max_to_keep]
        spared = to_preserve(superfluous, self._keep_every, max([self._began, *preserved]))
        for path, _ in superfluous:
            if path in spared:
                _files.preserve(path)
            else:
                _files.delete(path)


def _number(path: str) -> int:
    return int(path.rpartition("-")[2])


def _by_chief(group: Group, what: str, work: Callable[[], list[str]]) -> list[str]:
    """Let the chief do something, and return on all workers what came out."""
    return together(group, what, lambda: work() if group.index == 0 else None)[0]


def to_preserve(
    superfluous: Sequence[tuple[str, float]], every_n_hours: float | None, last: float
) -> set[str]:
    """Return which checkpoints are to be kept although there are newer ones enough.

    Args:
      superfluous: the paths and times of those to choose from, oldest first.
      every_n_hours: how far apart they are to be; None keeps none.
      last: the time of the last one that was kept.
    """
    chosen: set[str] = set()
    if every_n_hours is not None:
        for path, saved_at in superfluous:
            if saved_at - last >= every_n_hours * 3600:
                chosen.add(path)
                last = saved_at
    return chosen
