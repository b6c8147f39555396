"""What clusters for tests have in common: their description, a coordinator, and figures."""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Self

from ..cluster import ClusterSpec, SimpleClusterResolver, Task
from ..cluster._this_machine import free_ports
from ..coordinator import ClusterCoordinator
from ..coordinator._coordinator import known_coordinator
from ..coordinator._messages import Status, WorkerStatus
from ..errors import UnavailableError
from ..rpc import Channel, ClusterKey, exchange, key_in_environment
from ..strategies import ParameterServerStrategy

__all__ = ["Cluster"]

SECONDS = 60.0
"""How long anything may take; much more than it needs, as machines may be busy."""


class Cluster(ABC):
    """Workers and parameter servers on this machine, with this process as the coordinator.

    Args:
      workers: how many workers there are.
      ps: how many parameter servers there are.
      variable_partitioner: how the strategy divides variables, if it is not said otherwise.
      encryption: whether connections over tcp are encrypted.
    """

    def __init__(
        self,
        workers: int = 2,
        ps: int = 1,
        *,
        variable_partitioner: Any = None,
        encryption: bool = True,
    ) -> None:
        if workers < 1 or ps < 1:
            raise ValueError(
                "A cluster has at least one worker and one parameter server, got "
                f"workers={workers}, ps={ps}."
            )
        addresses = iter(f"127.0.0.1:{port}" for port in free_ports(1 + workers + ps))
        self._spec = ClusterSpec(
            {
                "chief": [next(addresses)],
                "worker": [next(addresses) for _ in range(workers)],
                "ps": [next(addresses) for _ in range(ps)],
            }
        )
        self._secret = secrets.token_hex(32)
        self._partitioner = variable_partitioner
        self._encryption = encryption
        self._key = ClusterKey(self._secret.encode())
        self._inside = ExitStack()
        self._strategies: list[ParameterServerStrategy] = []

    # --- Its description -------------------------------------------------------------------

    @property
    def spec(self) -> ClusterSpec:
        """All tasks and their addresses."""
        return self._spec

    @property
    def tasks(self) -> list[str]:
        """The names of the workers and the parameter servers."""
        return [f"{job}:{i}" for job in ("worker", "ps") for i in self._spec.task_indices(job)]

    @property
    def resolver(self) -> SimpleClusterResolver:
        """A resolver with which this process is the coordinator."""
        return SimpleClusterResolver(self._spec, task_type="chief", task_id=0)

    # --- Using it --------------------------------------------------------------------------

    def strategy(
        self, variable_partitioner: Any = None, *, replicas_per_worker: int | None = None
    ) -> ParameterServerStrategy:
        """Return a new strategy for the cluster, which can be used until the cluster ends.

        Args:
          variable_partitioner: how it divides variables; by default as the cluster was told.
          replicas_per_worker: on how many of its devices each worker runs a step; one by default.
        """
        partitioner = self._partitioner if variable_partitioner is None else variable_partitioner
        strategy = ParameterServerStrategy(
            self.resolver,
            partitioner,
            encryption=self._encryption,
            replicas_per_worker=replicas_per_worker,
            key=self._key,
        )
        self._close_later(strategy)
        return strategy

    def coordinator(
        self, strategy: ParameterServerStrategy | None = None, **options: Any
    ) -> ClusterCoordinator:
        """Return a coordinator, which is closed when the cluster ends.

        Args:
          strategy: its strategy; by default a new one.
          **options: other arguments of `ClusterCoordinator`.
        """
        strategy = self.strategy() if strategy is None else strategy
        coordinator = ClusterCoordinator(strategy, **options)
        self._close_later(strategy)
        self._inside.callback(coordinator.close)
        return coordinator

    @abstractmethod
    def start(self, task: str) -> None:
        """Start a task that does not run, on the address it always has."""

    @abstractmethod
    def kill(self, task: str) -> None:
        """End a task without a word."""

    @abstractmethod
    def paused(self, task: str) -> AbstractContextManager[None]:
        """Have a task out of reach for a while; it keeps what it holds."""

    # --- Watching it -----------------------------------------------------------------------

    def status(self, worker: str, seconds: float = 5.0) -> WorkerStatus:
        """Ask a worker how it is.

        Raises:
          UnavailableError: when it does not answer.
        """
        task = Task.parse(worker)
        address = self._spec.task_address(task.job, task.index)
        channel = Channel(
            address, worker, "observer", self._key, WorkerStatus, encryption=self._encryption
        )
        try:
            (reply,) = exchange(
                [(channel, Status(), ())], what=f"the status of {worker}", patience=seconds
            )
        finally:
            channel.close()
        assert isinstance(reply.body, WorkerStatus)
        return reply.body

    def assert_quiescent(self, seconds: float = 10.0) -> None:
        """Make sure that no worker which runs has anything left to do, or soon has not.

        Raises:
          AssertionError: when one still has.
        """
        deadline = time.monotonic() + seconds
        while busy := self._busy():
            if time.monotonic() > deadline:
                raise AssertionError(f"Still busy after {seconds:g} s: {'; '.join(busy)}.")
            time.sleep(0.01)

    def _busy(self) -> list[str]:
        busy: list[str] = []
        for task in self._running():
            if not task.startswith("worker:"):
                continue
            try:
                status = self.status(task)
            except UnavailableError as error:
                busy.append(str(error))
                continue
            if status.running != -1 or status.waiting:
                busy.append(f"{task} runs {status.running}, and {status.waiting} wait")
        return busy

    @abstractmethod
    def _running(self) -> list[str]:
        """Return the tasks that should answer."""

    # --- Its life --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with ExitStack() as undo:
            undo.callback(self._end)
            undo.enter_context(key_in_environment(self._secret))
            self._begin()
            self._inside = undo.pop_all()
        self._inside.callback(self._strategies.clear)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside.close()

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    def _close_later(self, strategy: ParameterServerStrategy) -> None:
        if not any(strategy is known for known in self._strategies):
            self._strategies.append(strategy)
            self._inside.callback(strategy.session.close)
            self._inside.callback(_close_coordinator, strategy)

    def _check(self, task: str) -> Task:
        if task not in self.tasks:
            raise ValueError(f"The cluster has no task {task!r}; it has {', '.join(self.tasks)}.")
        return Task.parse(task)


def _close_coordinator(strategy: ParameterServerStrategy) -> None:
    """Close the coordinator that something else than the test has made for a strategy."""
    coordinator = known_coordinator(strategy)
    if coordinator is not None:
        coordinator.close()
