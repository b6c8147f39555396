"""What the launcher writes: the lines of the tasks, its own, and one line of progress.

On a terminal the progress is one line at the bottom that is drawn again and again. Elsewhere it is
an ordinary line now and then, if something has changed.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from ._output import Stream
from ._progress import JobProgress

_SECONDS_BETWEEN_LINES = 10.0
_SECONDS_BETWEEN_DRAWINGS = 0.25
_COLOURS = ("cyan", "magenta", "green", "yellow", "blue")
_LAUNCHER = "launcher"


class Display:
    """Writes to the stdout and stderr of the launcher.

    Args:
      tasks: the names that lines are prefixed with.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        self._width = max(len(name) for name in [*tasks, _LAUNCHER])
        self._styles = {t: _COLOURS[n % len(_COLOURS)] for n, t in enumerate(tasks)}
        self._styles[_LAUNCHER] = "bold"
        self._consoles = {
            Stream.STDOUT: Console(file=sys.stdout, highlight=False, markup=False),
            Stream.STDERR: Console(file=sys.stderr, highlight=False, markup=False),
        }
        terminal = self._consoles[Stream.STDERR]
        # Both, as a line of progress would be torn by what another program writes below it.
        both = all(console.is_terminal for console in self._consoles.values())
        self._live: Live | None = None
        if both and not terminal.is_dumb_terminal:
            self._live = Live(
                console=terminal,
                auto_refresh=False,  # by the caller's loop: no thread, nothing to race with
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
        self._prefixes = {
            (name, stream): self._rendered(name, stream)
            for name in self._styles
            for stream in Stream
        }
        self._shown_state = ""
        self._last_progress = float("-inf")
        self.closed = False
        """Whether nobody reads what is written any more."""

    def task_lines(self, task: str, stream: Stream, lines: Sequence[bytes]) -> None:
        """Write lines of a task, each with its name before it."""
        if not lines:
            return
        if self._live is not None:
            self._print([Text.from_ansi(line.decode(errors="replace")) for line in lines], task)
            return
        prefix = self._prefixes[task, stream]
        self._write(stream, b"".join(prefix + line + b"\n" for line in lines))

    def say(self, *lines: str, style: str = "") -> None:
        """Write lines of the launcher itself."""
        if self._live is not None:
            self._print([Text(line, style) for line in lines], _LAUNCHER)
            return
        prefix = self._prefixes[_LAUNCHER, Stream.STDERR]
        self._write(Stream.STDERR, b"".join(prefix + line.encode() + b"\n" for line in lines))

    def progress(self, progress: JobProgress, now: float) -> None:
        """Show how far the job is, if it is time to."""
        if self._live is not None:
            if now - self._last_progress >= _SECONDS_BETWEEN_DRAWINGS:
                self._last_progress = now
                self._draw(Text(progress.text(now), "dim", no_wrap=True, overflow="ellipsis"))
            return
        state = progress.state(now)
        if state != self._shown_state and now - self._last_progress >= _SECONDS_BETWEEN_LINES:
            self.keep_quiet_about(progress, now)
            self.say(progress.text(now))

    def keep_quiet_about(self, progress: JobProgress, now: float) -> None:
        """Take the state as known, since something else that is written says it."""
        self._shown_state = progress.state(now)
        self._last_progress = now

    def close(self) -> None:
        """Remove the line at the bottom."""
        if self._live is not None:
            try:
                self._live.stop()
            except OSError as error:
                self._note_closed(error)
            self._live = None

    def _draw(self, line: Text) -> None:
        assert self._live is not None
        try:
            if not self._live.is_started:
                self._live.start()
            self._live.update(line, refresh=True)
        except OSError as error:
            self._note_closed(error)

    def _print(self, lines: list[Text], name: str) -> None:
        prefix = f"{name:<{self._width}} | "
        whole = Text("\n").join(Text.assemble((prefix, self._styles[name]), each) for each in lines)
        try:
            self._consoles[Stream.STDERR].print(whole, soft_wrap=True)
        except OSError as error:
            self._note_closed(error)

    def _write(self, stream: Stream, data: bytes) -> None:
        # Not through `sys.stdout`, which keeps what it could not write, and complains at exit.
        while data and not self.closed:
            try:
                data = data[os.write(stream.value, data) :]
            except OSError as error:
                self._note_closed(error)

    def _note_closed(self, error: OSError) -> None:
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise error
        self.closed = True
        self._live = None

    def _rendered(self, name: str, stream: Stream) -> bytes:
        console = self._consoles[stream]
        with console.capture() as capture:
            console.print(Text(f"{name:<{self._width}} | ", self._styles[name]), end="")
        return capture.get().encode()
