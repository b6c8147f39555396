"""What to do when a parameter server is lost."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["RestorePolicy"]


@dataclass(frozen=True)
class RestorePolicy:
    """Lets training go on after a parameter server was lost and started again.

    Servers write snapshots of what they hold to a directory. When one is lost, closures wait until
    it has been started again; it goes on from its newest snapshot, and how many updates were lost
    is printed.

    >>> policy = jt.experimental.coordinator.RestorePolicy("/tmp/snapshots", every_seconds=30.0)
    >>> policy.wait_seconds
    600.0

    Args:
      directory: where snapshots are written; every server must find its own there again.
      every_seconds: how often.
      wait_seconds: how long to wait for a server to be started again.

    Raises:
      ValueError: when a number of seconds is not positive.
    """

    directory: str | os.PathLike[str]
    every_seconds: float = 60.0
    wait_seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("every_seconds", "wait_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(
                    f"{name} of a RestorePolicy must be positive, got {getattr(self, name)!r}."
                )
