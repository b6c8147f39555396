"""What to do when a machine is about to be taken away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidArgumentError

__all__ = ["TerminationConfig"]


@dataclass(frozen=True)
class TerminationConfig:
    """How a `PreemptionCheckpointHandler` learns of the end, and what it does then.

    >>> config = jt.experimental.TerminationConfig(grace_period=120)
    >>> config.exit_fn is None
    True

    Args:
      termination_watcher_fn: called about once a second, in a thread, until it returns True: this
        machine is about to be taken away. SIGTERM is then not watched for. It must not wait.
      exit_fn: called after the last checkpoint is complete. By default the program ends with exit
        code 143, which `jaxtribute launch` understands. If it returns, so does `run`, and the
        handler does nothing more.
      grace_period: how many seconds remain after the notice. With 0, or None, all save and end at
        once. With more, all save at once as well, go on training, and save again and end before
        that time has passed.
      save_fn: called to save, instead of the `save` of the checkpoint or its manager, with the
        arguments of `save_checkpoint_if_preempted`.

    Raises:
      InvalidArgumentError: when the grace period is negative, or a function is none.
    """

    termination_watcher_fn: Callable[[], bool] | None = None
    exit_fn: Callable[[], Any] | None = None
    grace_period: float | None = None
    save_fn: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for name in ("termination_watcher_fn", "exit_fn", "save_fn"):
            value: Any = getattr(self, name)
            if value is not None and not callable(value):
                raise InvalidArgumentError(f"{name} has to be a function or None, got {value!r}.")
        if self.grace_period is not None and not self.grace_period >= 0:
            raise InvalidArgumentError(
                "grace_period is how many seconds remain after the notice, 0 to end at once, got "
                f"{self.grace_period!r}."
            )
