"""A cluster whose workers and parameter servers are processes of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from .. import _die_with_parent
from .._job import CLUSTER_KEY
from ._cluster import SECONDS, Cluster

__all__ = ["ProcessCluster"]

_PROGRAM = """
import jaxtribute as jt
resolver = jt.cluster_resolver.TFConfigClusterResolver()
jt.Server(resolver, start=False, encryption={encryption}).join()  # takes signals, then listens
"""
_NOT_INHERITED = ("PJRT_NPROC", "NPROC", "XLA_FLAGS", "TF_CONFIG", "JAX_NUM_CPU_DEVICES")


class ProcessCluster(Cluster):
    """Workers and parameter servers in processes of their own, for tests; this one coordinates.

    >>> with jt.testing.ProcessCluster(workers=1, ps=1) as cluster:
    ...     coordinator = cluster.coordinator()
    ...     coordinator.schedule(os.getpid).fetch() == cluster.pid("worker:0")
    True

    When the `with` block fails, what the processes have written is shown. None of them outlives it,
    nor this process.

    Args:
      workers: how many workers there are.
      ps: how many parameter servers there are.
      variable_partitioner: how the strategy divides variables, if it is not said otherwise.
      encryption: whether connections over tcp are encrypted.
      devices: how many CPU devices each has.
      environment: more variables for all of them.
    """

    def __init__(
        self,
        workers: int = 2,
        ps: int = 1,
        *,
        variable_partitioner: Any = None,
        encryption: bool = True,
        devices: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            workers, ps, variable_partitioner=variable_partitioner, encryption=encryption
        )
        self._devices = devices
        self._environment = dict(environment or {})
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stopped: set[str] = set()
        self._began_at: dict[str, int] = {}  # where the log of its current life begins
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    # --- Their life ------------------------------------------------------------------------

    def start(self, task: str) -> None:
        """Start a task that does not run, on the address it always has, and wait until it listens.

        Raises:
          ValueError: when there is no such task, or it runs.
          RuntimeError: when it ends at once.
        """
        self._launch(task)
        self._wait_until_it_listens(task)

    def kill(self, task: str) -> None:
        """End a task with SIGKILL, and wait until it has ended.

        Raises:
          ValueError: when it does not run.
        """
        process = self._process(task)
        process.kill()
        process.wait()
        self._stopped.discard(task)

    def stop(self, task: str) -> None:
        """Have a task stand still, with SIGSTOP.

        Raises:
          ValueError: when it does not run.
        """
        self._process(task).send_signal(signal.SIGSTOP)
        self._stopped.add(task)

    def cont(self, task: str) -> None:
        """Have a task that stands still go on, with SIGCONT.

        Raises:
          ValueError: when it does not run.
        """
        self._process(task).send_signal(signal.SIGCONT)
        self._stopped.discard(task)

    def terminate(self, task: str) -> int:
        """Ask a task to end, with SIGTERM, wait until it has, and return its exit code.

        Raises:
          ValueError: when it does not run.
        """
        process = self._process(task)
        process.terminate()
        return process.wait(SECONDS)

    @contextmanager
    def paused(self, task: str) -> Generator[None]:
        """Have a task stand still for a while; it keeps what it holds.

        Raises:
          ValueError: when it does not run.
        """
        self.stop(task)
        try:
            yield
        finally:
            self.cont(task)

    # --- Watching them ---------------------------------------------------------------------

    def pid(self, task: str) -> int:
        """Return the process id of a task that runs.

        Raises:
          ValueError: when it does not run.
        """
        return self._process(task).pid

    def log(self, task: str) -> str:
        """Return what a task has written, in all its lives."""
        self._check(task)
        try:
            return self._log(task).read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def _running(self) -> list[str]:
        return [
            task
            for task, process in self._processes.items()
            if process.poll() is None and task not in self._stopped
        ]

    # --- Inside ----------------------------------------------------------------------------

    def _begin(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="jaxtribute-")
        for task in self.tasks:  # all at the same time, as each takes a while
            self._launch(task)
        for task in self.tasks:
            self._wait_until_it_listens(task)

    def _end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()  # also one that stands still
            process.wait()
        self._processes.clear()
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._show_logs()
        super().__exit__(kind, error, trace)

    def _launch(self, task: str) -> None:
        named = self._check(task)
        if (process := self._processes.get(task)) is not None and process.poll() is None:
            raise ValueError(f"{task} runs already.")
        config = {
            "cluster": self._spec.as_dict(),
            "task": {"type": named.job, "index": named.index},
        }
        variables = {name: v for name, v in os.environ.items() if name not in _NOT_INHERITED}
        variables |= {
            "TF_CONFIG": json.dumps(config),
            "JAX_NUM_CPU_DEVICES": str(self._devices),
            "PYTHONUNBUFFERED": "1",
            CLUSTER_KEY: self._secret,
        }
        program = [sys.executable, "-c", _PROGRAM.format(encryption=self._encryption)]
        if sys.platform == "linux":
            guard = [sys.executable, "-I", "-S", str(_die_with_parent.__file__), str(os.getpid())]
            program = guard + program
        with self._log(task).open("ab") as log:
            self._began_at[task] = log.tell()
            self._processes[task] = subprocess.Popen(
                program,
                env=variables | self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # Ctrl-C is for the test, which ends them
            )

    def _wait_until_it_listens(self, task: str) -> None:
        deadline = time.monotonic() + SECONDS
        process = self._processes[task]
        while b"listens on" not in self._log(task).read_bytes()[self._began_at[task] :]:
            if process.poll() is not None:
                raise RuntimeError(
                    f"{task} ended with code {process.returncode} before it listened. It wrote:\n"
                    f"{self.log(task)}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(f"{task} does not listen after {SECONDS:g} s.")
            time.sleep(0.01)

    def _process(self, task: str) -> subprocess.Popen[bytes]:
        self._check(task)
        process = self._processes.get(task)
        if process is None or process.poll() is not None:
            raise ValueError(f"{task} does not run.")
        return process

    def _log(self, task: str) -> Path:
        assert self._directory is not None, "The cluster is used outside of its `with` block."
        return Path(self._directory.name) / f"{task.replace(':', '-')}.log"

    def _show_logs(self) -> None:
        for task in self.tasks:
            if written := self.log(task):
                process = self._processes.get(task)
                code = process.poll() if process is not None else None
                state = "runs" if code is None else f"ended with code {code}"
                print(f"--- {task}, which {state}, has written:\n{written}", file=sys.stderr)
