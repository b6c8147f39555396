"""Ending a collective that waits for a worker which will not come.

XLA offers no way to cancel a collective on CPUs: a thread that waits in one cannot be reached from
Python. But Gloo, which carries it, fails as soon as one of its connections ends. So they are told
apart from all others when they are made, and shut down when waiting has no sense any more. On
other platforms, where they cannot be found, `Connections` is empty and nothing is interrupted.
"""

from __future__ import annotations

import os
import socket

_FDS = "/proc/self/fd"


class Connections:
    """The sockets that appear between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self._before: set[str] | None = None  # set while connections are being made
        self._names: set[str] = set()

    def __enter__(self) -> Connections:
        self._before = set(_sockets())
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._note()
        self._before = None

    def _note(self) -> None:
        if self._before is not None:
            self._names |= set(_sockets()) - self._before

    def __len__(self) -> int:
        return len(self._names)

    def shut_down(self) -> int:
        """End those that are connections, and return how many there were."""
        ended = 0
        self._note()
        for name, descriptor in _sockets().items():
            if name not in self._names:
                continue
            try:
                with socket.socket(fileno=os.dup(descriptor)) as connection:
                    if connection.family in (socket.AF_INET, socket.AF_INET6):
                        connection.shutdown(socket.SHUT_RDWR)
                        ended += 1
            except OSError:
                continue  # it listens, or has ended in the meantime
        return ended


def _sockets() -> dict[str, int]:
    """Return the descriptors of this process's sockets, by the name the kernel gives them."""
    found: dict[str, int] = {}
    try:
        descriptors = os.listdir(_FDS)
    except OSError:  # there is no such folder elsewhere than on Linux
        return found
    for descriptor in descriptors:
        try:
            name = os.readlink(f"{_FDS}/{descriptor}")
        except OSError:
            continue  # closed in the meantime
        if name.startswith("socket:"):
            found[name] = int(descriptor)
    return found
