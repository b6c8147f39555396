"""The output of a task, cut into lines, and its end, kept for a report."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

_LONGEST_LINE = 64 * 1024
_SECONDS_BETWEEN_REDRAWS = 10.0
_KEPT_LINES = 300
_KEPT_OF_A_LINE = 2000
_NOISE = b"[Gloo] Rank"  # a C++ library announces each connection, and cannot be told not to


class Stream(Enum):
    """Where a line came from, and where it goes; the value is the descriptor."""

    STDOUT = 1
    STDERR = 2


class Lines:
    """Cuts a stream of bytes into lines.

    A progress bar, which draws itself again and again over one line, counts as a line every ten
    seconds, and when it is complete.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._last_redraw = float("-inf")

    def feed(self, data: bytes, now: float) -> list[bytes]:
        """Return the lines that are complete with `data`."""
        *complete, self._rest = (self._rest + data).split(b"\n")
        lines = [_visible(line) for line in complete]
        if b"\r" in self._rest:
            self._rest = _newest_drawing(self._rest)
            if _visible(self._rest) and now - self._last_redraw >= _SECONDS_BETWEEN_REDRAWS:
                self._last_redraw = now
                lines.append(_visible(self._rest))
        if len(self._rest) > _LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        return [line for line in lines if not line.startswith(_NOISE)]

    def close(self) -> list[bytes]:
        """Return the line the stream ended in the middle of, if it did."""
        rest, self._rest = _visible(self._rest), b""
        return [rest] if rest and not rest.startswith(_NOISE) else []


class Tail:
    """The last lines of a stream."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)

    def extend(self, lines: Iterable[bytes]) -> None:
        """Add lines, and forget the oldest."""
        self._lines.extend(line[:_KEPT_OF_A_LINE].decode(errors="replace") for line in lines)

    def lines(self) -> tuple[str, ...]:
        """Return them, oldest first."""
        return tuple(self._lines)


def _visible(line: bytes) -> bytes:
    """Return what a terminal would show in the end of a line that is drawn over."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def _newest_drawing(line: bytes) -> bytes:
    return b"\r" + _visible(line) + (b"\r" if line.endswith(b"\r") else b"")
