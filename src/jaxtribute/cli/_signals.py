"""Signals as something a loop can wait for, together with sockets and pipes."""

from __future__ import annotations

import signal
import socket
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType


@contextmanager
def caught_signals(numbers: Sequence[signal.Signals]) -> Generator[socket.socket]:
    """Yield a socket on which each signal that arrives is one byte, its number.

    A signal that is ignored stays so, as after `nohup`. Afterwards all but SIGCHLD are ignored:
    nothing is left for them to end, and who presses Ctrl-C once more wants no other exit code.
    """
    reader, writer = socket.socketpair()
    reader.setblocking(False)
    writer.setblocking(False)
    caught: list[signal.Signals] = []
    old_descriptor = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        for number in numbers:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _only_wake)
                caught.append(number)
        yield reader
    finally:
        for number in caught:
            after = signal.SIG_DFL if number is signal.SIGCHLD else signal.SIG_IGN
            signal.signal(number, after)
        signal.set_wakeup_fd(old_descriptor)
        reader.close()
        writer.close()


def _only_wake(number: int, frame: FrameType | None) -> None:
    """Do nothing: Python writes the number to the socket before it calls this."""
