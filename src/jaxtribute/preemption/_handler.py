"""`PreemptionCheckpointHandler`: saves when a machine is about to be taken away."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from .. import _job
from .._context import lasting
from .._limits import say
from ..checkpoint import Checkpoint, CheckpointManager, latest_checkpoint
from ..checkpoint._background import keep_exit_code
from ..cluster import ClusterResolver
from ..errors import InvalidArgumentError
from ._agreement import Agreement
from ._cluster import finish_scheduled, group_of, report
from ._config import TerminationConfig
from ._counts import RunCalls, kept_in
from ._termination import Termination, ignore_from_now_on

__all__ = ["PreemptionCheckpointHandler"]

_T = TypeVar("_T")

_numbers = itertools.count()

# How much longer than the last ones a save, and a call, may take without missing the deadline.
_SAVES_IN_RESERVE = 2.0
_CALLS_IN_RESERVE = 3.0  # one that runs, and those that another worker is ahead


class PreemptionCheckpointHandler:
    """Saves after the same step on all workers when one of them is asked to end, and ends there.

    >>> import tempfile
    >>> v = jt.Variable(0.0)
    >>> checkpoint = jt.train.Checkpoint(v=v)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     handler = jt.experimental.PreemptionCheckpointHandler(None, checkpoint, directory)
    ...     while handler.total_run_calls < 3:
    ...         _ = handler.run(lambda: v.assign_add(1.0))
    ...     handler.close()
    >>> float(v)
    3.0

    Clusters send SIGTERM to a process some time before they take its machine away. From then on all
    workers agree on a step, finish it, save one checkpoint together, and end with exit code 143.
    Started again, also on another number of workers, the handler restores it, and training goes on
    there. Under parameter servers the handler belongs to the coordinator, and what is scheduled
    runs to its end before it saves.

    Creating one restores the newest checkpoint, if there is one.

    Args:
      cluster_resolver: tells which workers there are, as for the strategy; None for those that this
        process has joined.
      checkpoint_or_checkpoint_manager: what is saved.
      checkpoint_dir: where; not needed with a manager, which has a directory.
      termination_config: how to learn of the end, and what to do then.

    Raises:
      InvalidArgumentError: for a checkpoint without a directory, or a task that does not train.
      FailedPreconditionError: in another thread than the main one, or before the workers joined.
      Exception: as `Checkpoint.restore`.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None,
        checkpoint_or_checkpoint_manager: Checkpoint | CheckpointManager,
        checkpoint_dir: str | os.PathLike[str] | None = None,
        termination_config: TerminationConfig | None = None,
    ) -> None:
        self._config = termination_config or TerminationConfig()
        self._saver = checkpoint_or_checkpoint_manager
        self._directory = _directory(self._saver, checkpoint_dir)
        self._checkpoint = checkpoint = _checkpoint(self._saver)
        self._group = group = group_of(checkpoint, cluster_resolver)
        self._counts = kept_in(checkpoint, "preemption", RunCalls)
        # Under one number on all workers, as handlers of earlier parts of a program may be heard.
        number = group.agree("watch for preemption", str(next(_numbers)))[0]
        self._about = f"preemption {number}"
        self._agreement = Agreement(group, self._about)
        self._may_go_on = bool(self._config.grace_period)
        self._save_seconds: float | None = None  # of the first save, if there is to be another
        self._is_over = False
        self._restore()
        self._termination = Termination(self._config.termination_watcher_fn)
        self._call_began = time.monotonic()  # also of one that does not use `run`

    @property
    def total_run_calls(self) -> int:
        """How often `run` was called, in this life of the program and in those before."""
        return self._counts.total_run_calls

    def run(self, distributed_train_function: Callable[..., _T], *args: Any, **kwargs: Any) -> _T:
        """Call a function that makes a step; save and end after it if one worker is to end.

        The checkpoint is that of the moment at which the function returns. What the program counts
        after `run` is not in it: count inside of the function, or use `total_run_calls`.

        All workers call it equally often. An error on one of them is raised on all.

        Args:
          distributed_train_function: makes one step or several.
          *args: its arguments.
          **kwargs: its keyword arguments.

        Returns:
          What the function returns.

        Raises:
          SystemExit: after the last step, with code 143.
          AbortedError: when the function raised an error on another worker.
          Exception: what the function raised; and as `Checkpoint.save`.
        """
        try:
            result = distributed_train_function(*args, **kwargs)
        except Exception as error:
            report(self._group, error)
            raise
        self._counts.total_run_calls += 1
        self._end_call((), {})
        return result

    def save_checkpoint_if_preempted(self, *args: Any, **kwargs: Any) -> None:
        """Save and end if one worker is to end; for loops that make their steps without `run`.

        >>> import tempfile
        >>> v = jt.Variable(0.0)
        >>> checkpoint = jt.train.Checkpoint(v=v)
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     handler = jt.experimental.PreemptionCheckpointHandler(None, checkpoint, directory)
        ...     with handler.watch_preemption_scope():
        ...         for _ in range(3):
        ...             _ = v.assign_add(1.0)
        ...             handler.save_checkpoint_if_preempted()
        ...     handler.close()

        All workers call it equally often, once after each step.

        Args:
          *args: passed to what saves: `Checkpoint.save`, after the path, `CheckpointManager.save`
            or the `save_fn` of the configuration.
          **kwargs: passed there as well.

        Raises:
          SystemExit: after the last step, with code 143.
          Exception: as `Checkpoint.save`.
        """
        self._end_call(args, kwargs)

    @lasting
    def watch_preemption_scope(self) -> Generator[None]:
        """Have an error inside raised on all workers, and save at the end if one is to end.

        Raises:
          Exception: as `run`.
        """
        try:
            yield
        except Exception as error:
            report(self._group, error)
            raise
        self._end_call((), {})

    def close(self) -> None:
        """Stop watching: SIGTERM does again what it did before."""
        self._termination.close()

    # --- After a step ----------------------------------------------------------------------

    def _end_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._is_over:
            return
        if self._is_due():
            self._agreement.ask()
        if self._agreement.pass_call():
            seconds = self._save(args, kwargs)
            if self._may_go_on:
                self._may_go_on = False
                self._save_seconds = seconds
                self._agreement = Agreement(self._group, f"{self._about}, the last time")
            else:
                self._is_over = True
                (self._config.exit_fn or _exit)()
        self._call_began = time.monotonic()

    def _is_due(self) -> bool:
        """Tell whether this worker has all save: at once, or again before its time is over."""
        if not self._termination.is_asked:
            return False
        asked_at, grace = self._termination.asked_at, self._config.grace_period
        if self._save_seconds is None or asked_at is None or grace is None:
            return True
        now = time.monotonic()
        reserve = _SAVES_IN_RESERVE * self._save_seconds
        reserve += _CALLS_IN_RESERVE * (now - self._call_began)
        return now >= asked_at + grace - reserve

    def _save(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
        """Save, and return how many seconds it took until the checkpoint was complete."""
        began = time.monotonic()
        _job.report(phase="saving: preempted")
        finish_scheduled(self._checkpoint)
        if self._config.save_fn is not None:
            self._config.save_fn(*args, **kwargs)
        elif isinstance(self._saver, CheckpointManager):
            self._saver.save(*args, **{"check_interval": False, **kwargs})
        else:
            self._saver.save(os.path.join(self._directory, "ckpt"), *args, **kwargs)
        self._saver.wait_until_finished()
        if self._group.index == 0:
            own = self._config.save_fn is None  # where another function saves is not known
            what = latest_checkpoint(self._directory) if own else "with save_fn"
            say(f"preempted: saved {what}, to go on from there")
        return time.monotonic() - began

    def _restore(self) -> None:
        if isinstance(self._saver, CheckpointManager):
            self._saver.restore_or_initialize()
        else:
            self._saver.restore(latest_checkpoint(self._directory))


def _exit() -> None:
    ignore_from_now_on()  # a second signal must not change the exit code
    keep_exit_code()  # which is about the checkpoint that was saved last
    sys.exit(_job.EXIT_PREEMPTED)


def _checkpoint(saver: Checkpoint | CheckpointManager) -> Checkpoint:
    return saver.checkpoint if isinstance(saver, CheckpointManager) else saver


def _directory(
    saver: Checkpoint | CheckpointManager, directory: str | os.PathLike[str] | None
) -> str:
    given = None if directory is None else os.fspath(directory)
    if isinstance(saver, CheckpointManager):
        if given is not None and os.path.abspath(given) != os.path.abspath(saver.directory):
            raise InvalidArgumentError(
                f"The checkpoint manager saves in {saver.directory!r}, so checkpoint_dir cannot be "
                f"{given!r}. Leave it out."
            )
        return saver.directory
    if not isinstance(saver, Checkpoint):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidArgumentError(
            f"A preemption handler saves a Checkpoint or with a CheckpointManager, got {saver!r}."
        )
    if given is None:
        raise InvalidArgumentError(
            "A preemption handler that is given a Checkpoint needs a checkpoint_dir to save it in. "
            "Pass one, or a CheckpointManager."
        )
    return given
