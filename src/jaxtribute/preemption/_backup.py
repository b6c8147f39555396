"""`BackupAndRestore`: training loops that go on where they were interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import TracebackType
from typing import Literal

from ..checkpoint import Checkpoint, CheckpointManager, _files
from ..checkpoint._together import together
from ..errors import FailedPreconditionError, InvalidArgumentError
from ._cluster import finish_scheduled, group_of, report
from ._config import TerminationConfig
from ._counts import Loops, kept_in
from ._handler import PreemptionCheckpointHandler

__all__ = ["BackupAndRestore"]

_KEPT = 2  # should the newest one be damaged


class BackupAndRestore:
    """Lets a training loop go on where it was interrupted, in three lines.

    >>> import tempfile
    >>> v = jt.Variable(0.0)
    >>> checkpoint = jt.train.Checkpoint(v=v)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with jt.train.BackupAndRestore(checkpoint, directory, save_freq=2) as backup:
    ...         for step in backup.steps(5):
    ...             _ = v.assign_add(1.0)
    ...     # Started again, there is nothing left to do.
    ...     with jt.train.BackupAndRestore(checkpoint, directory, save_freq=2) as backup:
    ...         print(float(v), list(backup.steps(5)))
    5.0 []

    The `with` block restores the newest backup when it is entered. Its loops count steps and epochs
    in the checkpoint, save now and then, and begin where the backup was made. When a worker is
    asked to end by SIGTERM, all of them save after the same step and end, as with a
    `PreemptionCheckpointHandler`; killed without notice, training goes on from the last backup.
    Iterators in the checkpoint go on with the next batch.

    With several workers, all run the same loops. Under parameter servers the coordinator does, and
    what is scheduled runs to its end before each backup.

    Args:
      checkpoint: what is saved. How far the loops are becomes part of it, as `backup`.
      directory: where backups are kept, and nothing else; with several workers, on a file system
        that they share.
      save_freq: how many steps to make between backups; or "epoch", to save at the end of each.
      delete_checkpoint: whether to delete the backups when the `with` block ends without an error.
        Without it, the end is saved, and the program has nothing left to do when started again.
      termination_config: how to learn that this machine is taken away, and what to do then.

    Raises:
      InvalidArgumentError: for a `save_freq` that is neither a positive number nor "epoch".
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | os.PathLike[str],
        save_freq: int | Literal["epoch"] = "epoch",
        delete_checkpoint: bool = False,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        if save_freq != "epoch" and (not isinstance(save_freq, int) or save_freq < 1):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidArgumentError(
                'save_freq is a number of steps, at least 1, or "epoch" to save at the end of each '
                f"epoch, got {save_freq!r}."
            )
        self._checkpoint = checkpoint
        self._directory = os.fspath(directory)
        self._every = None if save_freq == "epoch" else save_freq  # steps
        self._deletes = delete_checkpoint
        self._config = termination_config
        self._manager: CheckpointManager | None = None
        self._handler: PreemptionCheckpointHandler | None = None
        self._loops = Loops()
        self._in_epoch = False
        self._counts_steps = False
        self._saved: tuple[int, ...] = ()
        self._was_left = False  # by `break`, in the middle of a step or an epoch

    def __enter__(self) -> BackupAndRestore:
        if self._handler is not None:
            raise FailedPreconditionError("This BackupAndRestore is in use: make another one.")
        self._loops = kept_in(self._checkpoint, "backup", Loops)
        manager = CheckpointManager(
            self._checkpoint, self._directory, max_to_keep=_KEPT, checkpoint_name="backup"
        )
        self._handler = PreemptionCheckpointHandler(None, manager, termination_config=self._config)
        self._manager = manager
        self._saved = self._place() if manager.latest_checkpoint else ()
        self._in_epoch = self._was_left = False  # as it may have been used before, and failed
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        handler, manager = self._opened()
        try:
            if error is None:
                self._finish(manager)
            elif isinstance(error, Exception):
                report(group_of(self._checkpoint, None), error)
        finally:
            handler.close()
            self._handler = self._manager = None

    # --- Loops -----------------------------------------------------------------------------

    def steps(self, total: int) -> Iterator[int]:
        """Return the numbers of the steps that are left, from 0 to `total` - 1.

        A step is counted when the next one is asked for. In a loop over `epochs`, those of each
        epoch are counted from 0.

        Args:
          total: how many steps there are, in an epoch if there are epochs.

        Raises:
          InvalidArgumentError: with `save_freq="epoch"`, outside of a loop over epochs.
          FailedPreconditionError: outside of the `with` block.
          SystemExit: with code 143, in a step after which all workers end.
          Exception: as `Checkpoint.save`.
        """
        self._opened()
        if self._every is None and not self._in_epoch:
            raise InvalidArgumentError(
                'With save_freq="epoch" backups are made at the end of each epoch, and these steps '
                "are in no loop over backup.epochs(...). Give save_freq a number of steps."
            )
        self._counts_steps = True
        return self._each_step(total)

    def _each_step(self, total: int) -> Iterator[int]:
        loops = self._loops
        while loops.step < total:
            self._was_left = True
            yield loops.step
            self._was_left = self._in_epoch
            loops.step += 1
            loops.steps_done += 1
            handler, _ = self._opened()
            handler.save_checkpoint_if_preempted()
            if self._every is not None and loops.steps_done % self._every == 0:
                self._save()

    def epochs(self, total: int) -> Iterator[int]:
        """Return the numbers of the epochs that are left, from 0 to `total` - 1.

        >>> import tempfile
        >>> checkpoint = jt.train.Checkpoint(v=jt.Variable(0.0))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     with jt.train.BackupAndRestore(checkpoint, directory) as backup:
        ...         for epoch in backup.epochs(2):
        ...             for step in backup.steps(3):
        ...                 _ = checkpoint.v.assign_add(1.0)

        Without a loop over `steps` in it, an epoch is not interrupted: when a worker is asked to
        end, all of them save at the end of the epoch.

        Args:
          total: how many epochs there are.

        Raises:
          InvalidArgumentError: when `save_freq` is a number, and an epoch counts no steps.
          FailedPreconditionError: in another loop over epochs, or outside of the `with` block.
          Exception: as `steps`.
        """
        self._opened()
        if self._in_epoch:
            raise FailedPreconditionError("This is a loop over epochs in another one.")
        return self._each_epoch(total)

    def _each_epoch(self, total: int) -> Iterator[int]:
        loops = self._loops
        while loops.epoch < total:
            self._in_epoch = self._was_left = True
            self._counts_steps = False
            try:
                yield loops.epoch
            finally:  # also when the loop is left
                self._in_epoch = False
            self._was_left = False
            if self._every is not None and not self._counts_steps:
                raise InvalidArgumentError(
                    f"save_freq={self._every} is a number of steps, and the epoch had no loop over "
                    'backup.steps(...) to count them. Make one, or use save_freq="epoch".'
                )
            loops.epoch += 1
            loops.step = 0
            handler, _ = self._opened()
            handler.save_checkpoint_if_preempted()
            if self._every is None:
                self._save()

    # --- Backups ---------------------------------------------------------------------------

    def _opened(self) -> tuple[PreemptionCheckpointHandler, CheckpointManager]:
        if self._handler is None or self._manager is None:
            raise FailedPreconditionError(
                "BackupAndRestore restores and saves in its `with` block, and is used outside of "
                "it: with jt.train.BackupAndRestore(...) as backup: ..."
            )
        return self._handler, self._manager

    def _place(self) -> tuple[int, ...]:
        return self._loops.epoch, self._loops.step, self._loops.steps_done

    def _save(self) -> None:
        _, manager = self._opened()
        finish_scheduled(self._checkpoint)
        manager.save(check_interval=False)
        self._saved = self._place()

    def _finish(self, manager: CheckpointManager) -> None:
        if not self._deletes and not self._was_left and self._place() != self._saved:
            self._save()
        manager.wait_until_finished()
        if self._deletes:
            group = group_of(self._checkpoint, None)
            together(group, "delete the backups", lambda: _delete(manager, group.index == 0))


def _delete(manager: CheckpointManager, is_chief: bool) -> None:
    for path in manager.checkpoints if is_chief else ():
        known = _files.examine(path)
        if known is not None and known.damage is None:  # who knows what can be saved by hand
            _files.delete(path)
