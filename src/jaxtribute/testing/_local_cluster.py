"""A whole cluster inside this process, over real sockets."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from ..coordinator._task_server import TaskServer
from ._cluster import SECONDS, Cluster
from ._freezer import Freezer

__all__ = ["LocalCluster"]


class LocalCluster(Cluster):
    """A coordinator, workers and parameter servers inside this process, for tests.

    Each task has threads of its own, and talks to the others as it would from another process. All
    share the devices of this one.

    >>> with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
    ...     coordinator = cluster.coordinator()
    ...     coordinator.schedule(lambda x: 2 * x, args=(21,)).fetch()
    42

    Args:
      workers: how many workers there are.
      ps: how many parameter servers there are.
      variable_partitioner: how the strategy divides variables, if it is not said otherwise.
      encryption: whether connections over tcp are encrypted.
    """

    def _begin(self) -> None:
        self._freezer = Freezer()
        self._servers: dict[str, TaskServer] = {}
        self._ended: list[TaskServer] = []
        for task in self.tasks:
            self.start(task)

    def _end(self) -> None:
        # Workers first: one that runs a closure would wait for its servers until they are lost.
        for job in ("worker:", "ps:"):
            for task in [task for task in self._servers if task.startswith(job)]:
                self._stop(task)
            for server in self._ended:
                if left := server.wait(SECONDS):
                    raise TimeoutError(f"These threads have not ended: {', '.join(left)}.")
            self._ended.clear()

    def start(self, task: str) -> None:
        """Start a task that does not run, on the address it always has.

        Raises:
          ValueError: when there is no such task, or it runs.
        """
        named = self._check(task)
        if task in self._servers:
            raise ValueError(f"{task} runs already.")
        server = TaskServer(
            self._spec,
            named,
            self._key,
            encryption=self._encryption,
            announce=lambda text: None,
            reached=partial(self._freezer.reached, task),
        )
        server.start()
        self._servers[task] = server

    def kill(self, task: str) -> None:
        """End a task without a word: its connections are cut, and what it held is gone.

        A function that it runs at the moment goes on in its thread, and nobody hears of it.

        Raises:
          ValueError: when it does not run.
        """
        server = self._server(task)
        server.abandon()
        self._stop(task)

    @contextmanager
    def paused(self, task: str) -> Generator[None]:
        """Cut the connections of a task for a while; it keeps what it holds.

        Raises:
          ValueError: when it does not run.
        """
        server = self._server(task)
        server.disconnect()
        try:
            yield
        finally:
            server.reconnect()

    def freeze(self, task: str, at: str = "execute") -> None:
        """Have a worker stand still when it reaches a point.

        Args:
          task: its name.
          at: "execute", when it has accepted a closure and is about to run it, or "report", when it
            has run one and sent its updates, and is about to tell the coordinator.

        Raises:
          ValueError: when it does not run, or there is no such point.
        """
        self._server(task)
        self._freezer.freeze(task, at)

    def wait_until_frozen(self, task: str, seconds: float = SECONDS) -> None:
        """Wait until a worker stands still.

        Raises:
          TimeoutError: when it does not.
        """
        self._freezer.wait_until_frozen(task, seconds)

    def thaw(self, task: str) -> None:
        """Let a worker that stands still go on."""
        self._freezer.thaw(task)

    def _running(self) -> list[str]:
        return list(self._servers)

    def _server(self, task: str) -> TaskServer:
        self._check(task)
        if task not in self._servers:
            raise ValueError(f"{task} does not run.")
        return self._servers[task]

    def _stop(self, task: str) -> None:
        server = self._servers.pop(task)
        server.stop()
        self._freezer.thaw(task)  # so that its thread can end
        self._ended.append(server)
