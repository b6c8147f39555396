"""The workers and parameter servers of a coordinator, as processes of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.peers.multi_worker_pair import free_addresses

_ROOT = Path(__file__).resolve().parent.parent.parent
_DIE_WITH_PARENT = _ROOT / "src" / "jaxtribute" / "_die_with_parent.py"

Spec = dict[str, list[str]]


def free_spec(workers: int, servers: int) -> Spec:
    """A cluster of addresses of this host that nobody listens on."""
    chief, *others = free_addresses(1 + workers + servers)
    return {"chief": [chief], "worker": others[:workers], "ps": others[workers:]}


def tf_config(spec: Spec, job: str, index: int) -> str:
    """The text that tells a task who the others are, and who it is."""
    return json.dumps({"cluster": spec, "task": {"type": job, "index": index}})


class Cluster:
    """Started workers and parameter servers; `TF_CONFIG` of this process says it is the chief.

    Args:
      workers: how many.
      servers: how many.
      arguments: of the interpreter, for each task.
      variables: environment variables for all tasks.
    """

    def __init__(
        self,
        workers: int,
        servers: int,
        arguments: Sequence[str],
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.spec = free_spec(workers, servers)
        self._arguments, self._variables = tuple(arguments), dict(variables or {})
        self._processes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        os.environ.update(self._variables, TF_CONFIG=tf_config(self.spec, "chief", 0))

    def __enter__(self) -> Self:
        """Start all."""
        for job in ("ps", "worker"):
            for index in range(len(self.spec[job])):
                self.start(job, index)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all; there is nothing on them to save."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()

    def start(self, job: str, index: int) -> int:
        """Start a task, again if it was before, and return its process id."""
        process = subprocess.Popen(
            with_parent(sys.executable, *self._arguments),
            cwd=_ROOT,
            env={**os.environ, "TF_CONFIG": tf_config(self.spec, job, index)},
            stdin=subprocess.DEVNULL,
        )
        self._processes[job, index] = process
        return process.pid

    def kill(self, job: str, index: int) -> int:
        """End a task with SIGKILL, and return its process id."""
        process = self._processes[job, index]
        process.kill()
        process.wait()
        return process.pid


def with_parent(*program: str) -> list[str]:
    """A command that does not outlive this process, even if it is killed."""
    if sys.platform != "linux":
        return list(program)
    return [sys.executable, str(_DIE_WITH_PARENT), str(os.getpid()), *program]
