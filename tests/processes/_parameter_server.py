"""Closures that count, on workers and parameter servers that are processes of their own."""

import json
import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jaxtribute as jt
from jaxtribute import ps
from jaxtribute.rpc import Channel, ClusterKey, exchange
from jaxtribute.testing import ProcessCluster
from tests._interpreter import STRICT_PYTHON

SILENCE = {"JAXTRIBUTE_SILENCE_TIMEOUT": "3"}
"""Has tasks that say nothing count as lost soon."""

SECONDS = 100.0
"""How long anything may take; much more than it needs, as machines may be busy."""


def until(condition: Callable[[], Any], what: str, seconds: float = SECONDS) -> Any:
    """Wait until something is so, and return what the condition returned."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"Waited {seconds:g} s in vain for {what}."
        time.sleep(0.01)
    return found


class Counting:
    """A coordinator, and a variable on each parameter server that every closure adds 1 to."""

    def __init__(self, cluster: ProcessCluster, **options: Any) -> None:
        self.strategy = cluster.strategy()
        self.coordinator = cluster.coordinator(self.strategy, **options)
        with self.strategy.scope():
            self.counters = [
                jt.Variable(0.0, name=f"counter_{task}") for task in cluster.tasks if "ps" in task
            ]
        self.scheduled = 0

    def schedule(self, work: Callable[..., Any] | None = None, *args: Any) -> Any:
        """Schedule a closure that counts and does some work; it returns its process and that."""
        value = self.coordinator.schedule(_count, args=(self.counters, work, args))
        self.scheduled += 1
        return value

    def schedule_many(self, count: int, seconds: float = 0.0) -> list[Any]:
        """Schedule closures that each take a while."""
        return [self.schedule(time.sleep, seconds) for _ in range(count)]

    def until_run_by(self, process: int) -> None:
        """Schedule closures until a worker, known by its process, has run one."""
        until(lambda: self.schedule().fetch()[0] == process, f"process {process} to take part")

    def counted(self) -> list[float]:
        """Return what the counters say."""
        return [float(counter.numpy()) for counter in self.counters]

    def check(self, missing: int = 0) -> None:
        """Wait for all closures, and make sure that each was counted once on each server."""
        self.coordinator.join()
        assert self.counted() == [self.scheduled - missing] * len(self.counters)

    def close(self) -> None:
        self.coordinator.close()
        self.strategy.session.close()

    def __enter__(self) -> "Counting":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def _count(counters: list[Any], work: Callable[..., Any] | None, args: tuple[Any, ...]) -> Any:
    for counter in counters:
        counter.assign_add(1.0)
    return os.getpid(), None if work is None else work(*args)


# --- Work that closures do -----------------------------------------------------------------


def hold(directory: str, name: str = "held") -> str:
    """Say by a file which process runs this, and wait for the file `go`."""
    Path(directory, f"{name}-{os.getpid()}").touch()
    while not Path(directory, "go").exists():
        time.sleep(0.005)
    return name


def holders(directory: Path, name: str = "held") -> list[int]:
    """Return which processes have begun to hold."""
    return [int(path.name.rpartition("-")[2]) for path in directory.glob(f"{name}-*")]


def until_held(directory: Path, name: str = "held") -> int:
    """Return which process is the first to hold."""
    return until(lambda: holders(directory, name), f"a process to hold {name}")[0]


def die() -> None:
    """End the worker at once, before it has sent anything."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_before_reporting(directory: str) -> None:
    """End the worker once its updates have been sent; the first that does this, and only it."""
    try:
        Path(directory, "died").touch(exist_ok=False)
    except FileExistsError:
        return
    from jaxtribute.coordinator._outbox import Outbox

    Outbox.add = lambda *args, **options: die()


# --- Who is who ----------------------------------------------------------------------------


def task_of(cluster: ProcessCluster, process: int) -> str:
    """Return which worker a process is."""
    return next(t for t in cluster.tasks if t.startswith("worker") and cluster.pid(t) == process)


def ask(cluster: ProcessCluster, task: str, key: ClusterKey | None = None) -> ps.ServerStatus:
    """Ask a parameter server how it is."""
    job, _, index = task.partition(":")
    key = ClusterKey.load() if key is None else key
    address = cluster.spec.task_address(job, int(index))
    channel = Channel(address, task, "observer", key, ps.ServerStatus)
    try:
        (reply,) = exchange([(channel, ps.Status(), ())], what="a status", patience=SECONDS)
    finally:
        channel.close()
    return reply.body


class Chief:
    """A program that coordinates a cluster from a process of its own."""

    def __init__(self, cluster: ProcessCluster, directory: Path, program: str) -> None:
        self._file = directory / "chief.py"
        self._file.write_text(textwrap.dedent(program))
        task = {"type": "chief", "index": 0}
        self._config = json.dumps({"cluster": cluster.spec.as_dict(), "task": task})
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._lives = 0

    def start(self) -> subprocess.Popen[bytes]:
        self._lives += 1
        self._output = self._directory / f"chief-{self._lives}.txt"
        not_inherited = ("PJRT_NPROC", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES")
        inherited = {k: v for k, v in os.environ.items() if k not in not_inherited}
        with self._output.open("wb") as file:
            self._process = subprocess.Popen(
                [*STRICT_PYTHON, str(self._file)],
                env=inherited | {"TF_CONFIG": self._config, "PYTHONUNBUFFERED": "1"},
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        return self._process

    @property
    def written(self) -> str:
        return self._output.read_text()

    def until_written(self, text: str) -> None:
        def is_there() -> bool:
            assert self._process is not None
            ended = self._process.poll() is not None
            assert text in self.written or not ended, f"No {text!r} in:\n{self.written}"
            return text in self.written

        until(is_there, f"the chief to write {text!r}")

    def send(self, number: int) -> int:
        """Send a signal, and return the exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(SECONDS)

    def wait(self) -> int:
        """Wait for its end, and return the exit code."""
        assert self._process is not None
        return self._process.wait(SECONDS)

    def __enter__(self) -> "Chief":
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
