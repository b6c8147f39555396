"""Waking a thread that waits for sockets, from any other thread or a signal handler."""

from __future__ import annotations

import socket
from contextlib import suppress


class Wakeup:
    """A descriptor that can be read from once `wake` has been called."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._pending = False

    def fileno(self) -> int:
        """Return the descriptor to wait for."""
        return self._reader.fileno()

    def wake(self) -> None:
        """Wake the thread, now or when it next waits."""
        if not self._pending:  # two threads may both see that it is not: then it is written twice
            self._pending = True
            with suppress(OSError):  # it is full of earlier ones, or closed: nobody waits any more
                self._writer.send(b"\0")

    def clear(self) -> None:
        """Forget that it was woken; what it was woken for must be looked at after this."""
        with suppress(BlockingIOError):
            self._reader.recv(4096)
        self._pending = False  # only now: a byte that is read here must not count as still there

    def close(self) -> None:
        """Give the descriptors back."""
        self._reader.close()
        self._writer.close()
