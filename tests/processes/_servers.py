"""Workers and parameter servers that `jaxtribute server` runs, for tests of the command line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jaxtribute.cluster._this_machine import free_ports

SECONDS = 60.0


class Servers:
    """Processes that are all gone when the `with` block is left."""

    def __init__(self, directory: Path, workers: int, ps: int) -> None:
        self._directory = directory
        jobs = [*(f"worker:{i}" for i in range(workers)), *(f"ps:{i}" for i in range(ps))]
        ports = free_ports(len(jobs))
        self.addresses = {t: f"127.0.0.1:{p}" for t, p in zip(jobs, ports, strict=True)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def cluster(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for task, address in self.addresses.items():
            found.setdefault(task.partition(":")[0], []).append(address)
        return found

    def environment(self, **changes: str) -> dict[str, str]:
        """Return the variables of whoever belongs to this cluster."""
        inherited = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "PJRT_NPROC")}
        return {**inherited, "JAXTRIBUTE_CLUSTER_KEY": "ab" * 32, **changes}

    def start(self, task: str, *options: str) -> None:
        job, _, index = task.partition(":")
        config = {"cluster": self.cluster, "task": {"type": job, "index": int(index)}}
        with self._file(task).open("wb") as file:
            self._processes[task] = subprocess.Popen(
                [sys.executable, "-m", "jaxtribute.cli", "server", *options],
                env=self.environment(TF_CONFIG=json.dumps(config), PYTHONUNBUFFERED="1"),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def start_all(self) -> None:
        for task in self.addresses:
            self.start(task)
        for task in self.addresses:
            self.until_listening(task)

    def __getitem__(self, task: str) -> subprocess.Popen[bytes]:
        return self._processes[task]

    def written(self, task: str) -> str:
        return self._file(task).read_text()

    def until_written(self, task: str, text: str) -> None:
        deadline = time.monotonic() + SECONDS
        while text not in self.written(task):
            if time.monotonic() > deadline or self[task].poll() is not None:
                pytest.fail(f"{task} never wrote {text!r}, but:\n{self.written(task)}")
            time.sleep(0.02)

    def until_listening(self, task: str) -> None:
        self.until_written(task, f"{task} listens on")

    def __enter__(self) -> "Servers":
        return self

    def __exit__(self, *exc_info: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()  # also one that stands still
            process.wait()

    def _file(self, task: str) -> Path:
        return self._directory / f"{task.replace(':', '-')}.txt"
