"""The session that what is unpickled in this thread belongs to."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from ..errors import FailedPreconditionError


class _Thread(threading.local):
    def __init__(self) -> None:
        self.sessions: list[Any] = []


_thread = _Thread()


def session(what: str) -> Any:
    """Return the session of this thread.

    Args:
      what: what needs one, for the message.

    Raises:
      FailedPreconditionError: when there is none.
    """
    if not _thread.sessions:
        raise FailedPreconditionError(
            f"{what[0].upper()}{what[1:]} belongs to a parameter-server cluster, and was unpickled "
            "outside of it. It can be sent to workers by ClusterCoordinator.schedule only; to keep "
            "values, use jt.train.Checkpoint."
        )
    return _thread.sessions[-1]


@contextmanager
def entered(session: Any) -> Generator[None]:
    """Have what is unpickled in this thread belong to `session`."""
    _thread.sessions.append(session)
    try:
        yield
    finally:
        _thread.sessions.pop()
