"""How long launchers take until the first step, and until the first step after a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contestant import ContestantFailed
from benchmarks.environments import Environment
from benchmarks.peers.multi_worker_started import LOG

TIMEOUT_SECONDS = 120.0
WORKERS = 2
_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Launcher:
    """A command that starts workers, and starts them again when one fails."""

    name: str
    environment: Environment
    arguments: str
    """Of the environment's interpreter, separated by blanks."""


class Seconds(NamedTuple):
    """What one launch took."""

    launch: float
    """From the command to the first step."""
    restart: float
    """From the death of a worker to the first step of those that were started again."""


def measure(launcher: Launcher) -> Seconds:
    """Launch two workers, kill one with SIGKILL when both train, and wait for both to train again.

    Raises:
      ContestantFailed: when a launch or a restart does not come to a step.
    """
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as output:
        log = Path(folder) / "log"
        log.touch()
        variables = {**os.environ, LOG: str(log), "PYTHONPATH": str(_ROOT)}
        started = time.monotonic()
        process = subprocess.Popen(
            [launcher.environment.python(), *launcher.arguments.split()],
            cwd=_ROOT,
            env={**variables, "JAX_PLATFORMS": "cpu"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        try:
            first = _wait(launcher, process, log, 0, output)
            killed = time.monotonic()
            os.kill(first[-1]["pid"], signal.SIGKILL)
            second = _wait(launcher, process, log, 1, output)
            return Seconds(_last(first) - started, _last(second) - killed)
        finally:
            _end(process)


def first_steps(text: str, restarts: int) -> list[dict[str, Any]] | None:
    """What the workers have told after so many restarts, by rank, once all of them have."""
    told = [json.loads(line) for line in text.splitlines()]
    of_start = {one["rank"]: one for one in told if one["restarts"] == restarts}
    if len(of_start) < WORKERS:
        return None
    return [of_start[rank] for rank in range(WORKERS)]


def _wait(
    launcher: Launcher, process: subprocess.Popen[bytes], log: Path, restarts: int, output: Any
) -> list[dict[str, Any]]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (found := first_steps(log.read_text(), restarts)) is None:
        ended = process.poll()
        if ended is not None or time.monotonic() > deadline:
            output.seek(0)
            lines = output.read().decode(errors="replace").splitlines()[-30:]
            what = "took too long" if ended is None else f"ended with {ended}"
            raise ContestantFailed(
                f"The launcher of {launcher.name!r} {what} before all workers had trained a step, "
                f"after {restarts} restarts; it wrote:\n" + "\n".join(lines)
            )
        time.sleep(0.02)  # the workers write down the time; this only has to notice
    return found


def _last(found: Sequence[dict[str, Any]]) -> float:
    return max(one["at"] for one in found)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a launcher end its workers."""
    process.terminate()
    try:
        process.wait(timeout=40)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def measure_in_turn(launchers: Sequence[Launcher], rounds: int) -> dict[str, list[Seconds]]:
    """Measure launchers in turn, once more than is counted: the first time reads files anew."""
    found: dict[str, list[Seconds]] = {launcher.name: [] for launcher in launchers}
    for number in range(rounds + 1):
        for launcher in launchers:
            seconds = measure(launcher)
            shown = f"launch {seconds.launch:.1f} s, restart {seconds.restart:.1f} s"
            print(f"launches {number}/{rounds}, {launcher.name}: {shown}", file=sys.stderr)
            if number:
                found[launcher.name].append(seconds)
    return found
