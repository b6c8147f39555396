"""A cluster of workers in processes of their own, each of which runs the same script.

A script says what it found out with `say(...)`, one line of JSON each. The test waits for such
lines, never for a time to pass, and lets a script go on that waits at `hold("name")`.
"""

import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxtribute.cluster._this_machine import free_ports
from tests._interpreter import STRICT_PYTHON

SECONDS = 60.0
"""How long anything may take; much more than it needs, as machines may be busy."""

_ROOT = Path(__file__).parents[2]

_NOT_INHERITED = ("PJRT_NPROC", "NPROC", "XLA_FLAGS", "TF_CONFIG", "JAX_NUM_CPU_DEVICES")

_PREAMBLE = """
import json, os, signal, sys, time
from pathlib import Path
TASK = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {})
ME = TASK.get("index")

def say(event, **fields):
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\\n")  # at once, as threads do
    sys.stdout.flush()

def hold(name):
    while not Path(name).exists():
        time.sleep(0.01)

def said(error):
    fields = {"kind": type(error).__name__, "text": str(error)}
    return fields | {"tasks": getattr(error, "tasks", None)}

import jax, jax.numpy as jnp, numpy as np
import jaxtribute as jt

def replica():
    return jt.get_replica_context().replica_id_in_sync_group
"""


class Cluster:
    """The tasks of a cluster; what each writes is kept in files."""

    def __init__(
        self,
        directory: Path,
        workers: int = 2,
        devices: int = 1,
        jobs: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Describe a cluster.

        Args:
          directory: where everything is kept, and where scripts run.
          workers: how many workers there are.
          devices: how many devices each has.
          jobs: instead of `workers`, the tasks of each job: a number, or a list of indices.
          environment: more variables for all of them.
        """
        self._directory = directory
        indices = {
            job: list(range(tasks)) if isinstance(tasks, int) else tasks
            for job, tasks in (jobs or {"worker": workers}).items()
        }
        self.tasks = [f"{job}:{index}" for job in indices for index in indices[job]]
        addresses = iter(f"127.0.0.1:{port}" for port in free_ports(len(self.tasks)))
        self.spec: dict[str, Any] = {}
        for job, own in indices.items():
            by_index = {str(index): next(addresses) for index in own}
            dense = own == list(range(len(own)))
            self.spec[job] = list(by_index.values()) if dense else by_index
        self._devices = devices
        self._environment = dict(environment or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()  # also one that is stopped
            process.wait()

    # --- Starting --------------------------------------------------------------------------

    def start(
        self,
        script: str,
        tasks: Iterable[str] | None = None,
        environment: Mapping[str, str] | None = None,
        spec: Mapping[str, Any] | None = None,
        devices: int | None = None,
        called: str | None = None,
    ) -> None:
        """Start tasks; all of them unless it is said which.

        Args:
          script: what they run.
          tasks: their names.
          environment: more variables for these.
          spec: another description of the cluster for these.
          devices: another number of devices for these.
          called: the name by which the test knows a process, if it is not its task.
        """
        path = self._directory / f"script{len(self._processes)}.py"
        path.write_text(_PREAMBLE + textwrap.dedent(script))
        for task in self.tasks if tasks is None else tasks:
            job, _, index = task.partition(":")
            config = {
                "cluster": spec or self.spec,
                "task": {"type": job, "index": int(index)},
            }
            variables = {k: v for k, v in os.environ.items() if k not in _NOT_INHERITED}
            variables |= {
                "TF_CONFIG": json.dumps(config),
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(devices or self._devices),
                "PYTHONPATH": str(_ROOT),
            }
            variables |= self._environment | dict(environment or {})
            name = called or task
            with self._file(name, "out").open("wb") as out, self._file(name, "err").open("wb") as e:
                self._processes[name] = subprocess.Popen(
                    [*STRICT_PYTHON, str(path)],
                    env={name: value for name, value in variables.items() if value is not None},
                    cwd=self._directory,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=e,
                )

    def release(self, name: str) -> None:
        """Let those go on that wait at `hold(name)`."""
        (self._directory / name).touch()

    def send(self, task: str, number: signal.Signals) -> None:
        """Send a signal to a task."""
        self._processes[task].send_signal(number)

    def kill(self, task: str) -> None:
        """End a task as `kill -9` does."""
        self.send(task, signal.SIGKILL)

    # --- Watching --------------------------------------------------------------------------

    def stdout(self, task: str) -> str:
        return self._file(task, "out").read_text()

    def stderr(self, task: str) -> str:
        return self._file(task, "err").read_text()

    def said(self, task: str) -> list[dict[str, Any]]:
        """Return what a task has said so far."""
        lines = self.stdout(task).split("\n")[:-1]  # the last one may be incomplete
        return [json.loads(line) for line in lines if line.startswith("{")]

    def until(self, task: str, event: str, seconds: float = SECONDS) -> dict[str, Any]:
        """Wait until a task has said something, and return it."""

        def find() -> dict[str, Any] | None:
            return next((one for one in self.said(task) if one["event"] == event), None)

        return self.until_true(find, f"said {event!r} by {task}", seconds, [task])

    def until_all(self, event: str, tasks: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Wait until all tasks have said something, and return it, task by task."""
        return [self.until(task, event) for task in tasks or self.tasks]

    def until_written(self, task: str, text: str) -> None:
        """Wait until a task has written something to stderr."""
        written = f"written {text!r} by {task}"
        self.until_true(lambda: text in self.stderr(task), written, tasks=[task])

    def until_joined(self, task: str) -> None:
        """Wait until a task is known to the chief, and waits for the others."""
        process = psutil.Process(self._processes[task].pid)

        def joined() -> bool:  # then it listens for JAX, on a socket of its own
            return any(
                str(one.laddr).endswith("/client") for one in process.net_connections("unix")
            )

        self.until_true(joined, f"joined by {task}", tasks=[task])

    def until_true(
        self,
        find: Callable[[], Any],
        what: str,
        seconds: float = SECONDS,
        tasks: Iterable[str] | None = None,
    ) -> Any:
        """Wait until `find` finds something, as long as it may: all of `tasks` may have ended."""
        deadline = time.monotonic() + seconds
        awaited = [self._processes[task] for task in tasks or self._processes]
        while True:
            ended = all(process.poll() is not None for process in awaited)
            if found := find():
                return found
            if ended or time.monotonic() > deadline:
                self.fail(f"Never {what}")
            time.sleep(0.01)

    def code(self, task: str) -> int:
        """Wait until a task has ended, and return its exit code."""
        try:
            return self._processes[task].wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.fail(f"{task} did not end")

    def codes(self, *tasks: str) -> list[int]:
        """Wait until tasks have ended, all if none is named, and return their exit codes."""
        return [self.code(task) for task in tasks or self._processes]

    def finish(self) -> None:
        """Wait until all have ended, and make sure that they ended well."""
        if any(self.codes()):
            self.fail(f"Exit codes {self.codes()}")

    def complaints(self, task: str) -> list[str]:
        """Return the lines a task wrote to stderr that are not meant for users.

        With `-W error`, what a process leaves open at its end is found there as well.
        """
        told = ("jaxtribute: ", "Input of worker ", "[Gloo] Rank ")
        return [line for line in self.stderr(task).splitlines() if not line.startswith(told)]

    def fail(self, why: str) -> Any:
        written = "".join(
            f"\n--- {task}, exit code {process.poll()}\n{self.stdout(task)}{self.stderr(task)}"
            for task, process in self._processes.items()
        )
        pytest.fail(f"{why}. Written so far:{written}", pytrace=False)

    def _file(self, name: str, kind: str) -> Path:
        return self._directory / f"{name}.{kind}"
