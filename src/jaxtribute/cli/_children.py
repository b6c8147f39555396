"""One process of a job: started, read from, signalled."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from .. import _die_with_parent
from ._failures import Ending, State
from ._output import Lines, Stream, Tail

_READ_SIZE = 64 * 1024
_DRAIN_READS = 64  # of what a process wrote before it ended; a pipe holds at most 16 of them


@dataclass
class _Pipe:
    stream: Stream
    source: IO[bytes]
    lines: Lines


class Child:
    """A task that runs, or has ended.

    Args:
      task: its name.
      command: the program and its arguments.
      environment: all its variables.
      log: the file to append its lines to, if any.
    """

    def __init__(
        self,
        task: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None,
    ) -> None:
        self.task = task
        self.ending: Ending | None = None
        self._told_to_end: signal.Signals | None = None
        self._tail = Tail()
        self._log = None if log is None else log.open("ab", buffering=0)
        self._started = time.monotonic()
        self._process = subprocess.Popen(
            [*_dying_with_this_process(), *command],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C reaches the group of the launcher only, which passes it on: once.
            process_group=0,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._pipes = [
            _Pipe(Stream.STDOUT, self._process.stdout, Lines()),
            _Pipe(Stream.STDERR, self._process.stderr, Lines()),
        ]
        for pipe in self._pipes:
            os.set_blocking(pipe.source.fileno(), False)

    @property
    def streams(self) -> list[tuple[int, Stream]]:
        """The descriptors to wait for, until the process has ended."""
        return [(pipe.source.fileno(), pipe.stream) for pipe in self._pipes]

    def read(self, stream: Stream) -> tuple[list[bytes], bool]:
        """Return the lines that have arrived, and whether more may come."""
        pipe = next(pipe for pipe in self._pipes if pipe.stream is stream)
        data = pipe.source.read(_READ_SIZE)
        lines = pipe.lines.feed(data or b"", time.monotonic())
        self._keep(pipe.stream, lines)
        return lines, data != b""

    def poll(self) -> bool:
        """Tell whether the process has just ended. If so, `last_lines` must be called next."""
        return self.ending is None and self._process.poll() is not None

    def last_lines(self) -> Iterator[tuple[Stream, list[bytes]]]:
        """Yield what was written before the end, close the pipes, and set `ending`."""
        for pipe in self._pipes:
            lines: list[bytes] = []
            for _ in range(_DRAIN_READS):
                data = pipe.source.read(_READ_SIZE)
                if not data:  # its end, or what a process left behind may still write
                    break
                lines += pipe.lines.feed(data, time.monotonic())
            lines += pipe.lines.close()
            pipe.source.close()
            self._keep(pipe.stream, lines)
            yield pipe.stream, lines
        if self._log is not None:
            self._log.close()
        code = self._process.returncode
        if code != 0:  # what a failed task has started, such as readers of data, has no use
            self._signal_group(signal.SIGKILL)
        seconds = time.monotonic() - self._started
        self.ending = Ending(self.task, code, seconds, self._tail.lines(), self._told_to_end)

    def state(self) -> State:
        """Tell what the process is doing."""
        if self.ending is not None or self._process.returncode is not None:
            return State.ENDED
        try:
            status = Path(f"/proc/{self._process.pid}/stat").read_bytes()
        except OSError:  # not Linux
            return State.RUNNING
        # The name of the program, in parentheses, may hold anything; the state follows it.
        letter = status.rpartition(b")")[2].split()[0]
        return State.STOPPED if letter in (b"T", b"t") else State.RUNNING

    def ask_to_end(self, number: signal.Signals) -> None:
        """Send a signal; to a process that is stopped, and would not see it, SIGKILL."""
        if self.state() is State.STOPPED:
            number = signal.SIGKILL
        self._told_to_end = self._told_to_end or number
        if number is signal.SIGKILL:
            self.kill()
        elif self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End the process, and those it has started in its group."""
        self._told_to_end = self._told_to_end or signal.SIGKILL
        if self._process.poll() is None:
            self._signal_group(signal.SIGKILL)

    def destroy(self) -> None:
        """End the process if it has not ended, and give back all it holds."""
        self.kill()
        self._process.wait()
        if self.ending is None:
            for _ in self.last_lines():
                pass

    def _signal_group(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # nobody is left in it
            os.killpg(self._process.pid, number)

    def _keep(self, stream: Stream, lines: Sequence[bytes]) -> None:
        if stream is Stream.STDERR:
            self._tail.extend(lines)
        if self._log is not None and lines:
            self._log.write(b"".join(line + b"\n" for line in lines))


def start_all(tasks: Sequence[str], start: Callable[[str], Child]) -> list[Child]:
    """Start every task; when one cannot be, none is left."""
    children: list[Child] = []
    try:
        for task in tasks:
            children.append(start(task))
    except BaseException:
        for child in children:
            child.destroy()
        raise
    return children


def _dying_with_this_process() -> list[str]:
    if sys.platform != "linux":
        return []
    # Isolated and without site-packages: 30 ms instead of importing what the program imports.
    return [sys.executable, "-I", "-S", str(_die_with_parent.__file__), str(os.getpid())]
