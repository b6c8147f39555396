"""A launcher in a process of its own, as a user would start it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import psutil
import pytest

SECONDS = 60.0

# Enough for a script to know its place, without JAX.
PREAMBLE = """
import json, os, signal, socket, subprocess, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
index = task["index"]
restart = int(os.environ["JAXTRIBUTE_RESTART_COUNT"])

def wait():
    while True:
        signal.pause()

def report(**fields):
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    fields = {"task": f"{task['type']}:{index}", **fields}
    sender.sendto(json.dumps(fields).encode(), os.environ["JAXTRIBUTE_STATUS_SOCKET"])

class WorkerLostError(Exception):
    __module__ = "jaxtribute.errors"  # importing the real one would take a second

sys.stdout.write(f"pid {os.getpid()}\\n")  # at once: it may be killed in between
"""


class Launcher:
    """Runs `jaxtribute launch`, and keeps what it writes in files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._out = directory / "stdout"
        self._err = directory / "stderr"
        self._process: subprocess.Popen[bytes] | None = None
        # For what a launcher that is killed cannot remove. Short, as sockets are made in it.
        self._temporary = tempfile.TemporaryDirectory(prefix="launch-")

    def start(self, script: str, *arguments: str, options=(), environment=None) -> None:
        path = self.directory / "script.py"
        path.write_text(PREAMBLE + textwrap.dedent(script))
        variables = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "PJRT_NPROC")}
        variables["TMPDIR"] = self._temporary.name
        command = [sys.executable, "-m", "jaxtribute.cli", "launch", *options]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(
                [*command, str(path), *arguments],
                env=variables | (environment or {}),
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    @property
    def stdout(self) -> str:
        return self._out.read_text()

    @property
    def stderr(self) -> str:
        return self._err.read_text()

    def reported(self) -> list[str]:
        """Return what the launcher itself said after that it starts."""
        prefix = "launcher | "
        lines = [line for line in self.stderr.splitlines() if line.startswith(prefix)]
        return [line.removeprefix(prefix) for line in lines[1:]]

    def send(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def has_ended_after(self, number: signal.Signals) -> bool:
        """Send a signal to a launcher that still runs, and tell whether it does not."""
        assert self._process is not None
        if self._process.poll() is None:
            self._process.send_signal(number)
        return self._process.poll() is not None

    def until(self, text: str, times: int = 1) -> None:
        """Wait until something has been written."""
        self.until_true(lambda: (self.stdout + self.stderr).count(text) >= times, f"saw {text!r}")

    def until_true(self, condition, what: str) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"Never {what}. Written so far:\n{self.stdout}\n{self.stderr}")
            time.sleep(0.02)

    def pids(self) -> list[int]:
        """Return the processes the workers have told of, in the order of the workers."""
        lines = sorted(line for line in self.stdout.splitlines() if " | pid " in line)
        return [int(line.rpartition(" ")[2]) for line in lines]

    def started(self, workers: int) -> list[int]:
        """Wait until all workers run, and return their processes."""
        self.until(" | pid ", workers)
        return self.pids()

    def tasks(self) -> dict[str, psutil.Process]:
        """Return the processes that the launcher has started and that run, by their tasks."""
        assert self._process is not None
        found: dict[str, psutil.Process] = {}
        for process in psutil.Process(self._process.pid).children():
            try:
                task = json.loads(process.environ()["TF_CONFIG"])["task"]
            except (psutil.Error, KeyError):  # it has just ended, or just begins
                continue
            found[f"{task['type']}:{task['index']}"] = process
        return found

    def result(self) -> int:
        """Return the exit code, and make sure that no worker is left."""
        assert self._process is not None
        try:
            code = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            pytest.fail(f"Not done. Written so far:\n{self.stdout}\n{self.stderr}")
        self.until_true(lambda: not any(map(is_alive, self.pids())), "were all workers gone")
        return code

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        for pid in self.pids() if self._out.exists() else ():
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        self._temporary.cleanup()


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
