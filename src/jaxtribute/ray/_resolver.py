"""The resolver that places workers and parameter servers on a Ray cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from .._job import CLUSTER_KEY
from .._threads import thread_variables_apart
from ..cluster import ClusterResolver, ClusterSpec
from ..errors import FailedPreconditionError, UnavailableError
from ..rpc import key_in_environment
from ._actors import ServingTask
from ._placement import Placement, checked_count, checked_resources
from ._secret import job_secret

__all__ = ["RayClusterResolver"]

_SECONDS_TO_SAY_GOODBYE = 5.0


class RayClusterResolver(ClusterResolver):
    """Places workers and parameter servers on a Ray cluster, and tells where they are.

    Inside the `with` block each task is an actor of Ray that holds a `jt.Server`. One whose process
    ends is started again by Ray, at the same address. This process is the coordinator, and the key
    of the cluster is in its environment. No actor outlives the block.

    >>> import ray
    >>> _ = ray.init(ignore_reinit_error=True)
    >>> with jt.ray.RayClusterResolver(workers=1, ps=1) as resolver:
    ...     strategy = jt.ParameterServerStrategy(resolver)
    ...     coordinator = jt.coordinator.ClusterCoordinator(strategy)
    ...     with strategy.scope():
    ...         v = jt.Variable(1.0)
    ...     for _ in range(10):
    ...         _ = coordinator.schedule(lambda: v.assign_add(1.0))
    ...     coordinator.join()
    ...     print(v.numpy())
    ...     coordinator.close()
    11.0

    Addresses do not change. When a node is lost for good, so are its tasks: training goes on
    without its workers, and ends with a `PSUnavailableError` if a parameter server was there.

    Args:
      workers: how many workers there are.
      ps: how many parameter servers there are.
      resources_per_worker: what Ray is to set aside for each worker, such as
        `{"CPU": 4, "GPU": 1}`; one core by default.
      resources_per_ps: what Ray is to set aside for each parameter server; one core by default.
      environment: more environment variables for all of them, such as `JAX_NUM_CPU_DEVICES`.
      placement: how Ray chooses nodes: "PACK" for few, "SPREAD" for many, or "STRICT_PACK" and
        "STRICT_SPREAD" where nothing else will do.
      ports: where tasks may listen; by default one of 20000 to 31999 that is free.
      timeout_seconds: how long to wait for room in the cluster, and then for processes to start.

    Raises:
      InvalidArgumentError: when an argument cannot work.
    """

    def __init__(
        self,
        workers: int = 2,
        ps: int = 1,
        *,
        resources_per_worker: Mapping[str, float] | None = None,
        resources_per_ps: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        placement: str = "PACK",
        ports: Sequence[int] | None = None,
        timeout_seconds: float = 120.0,
    ) -> None:
        worker = checked_resources("resources_per_worker", resources_per_worker)
        server = checked_resources("resources_per_ps", resources_per_ps)
        tasks = {
            **{f"worker:{index}": worker for index in range(checked_count("workers", workers))},
            **{f"ps:{index}": server for index in range(checked_count("ps", ps))},
        }
        self._room = Placement(
            tasks,
            strategy=placement,
            ports=ports,
            environment=environment,
            timeout_seconds=timeout_seconds,
        )
        self._gpus = math.ceil(worker.get("GPU", 0))  # of a share, the whole can be seen
        self._spec: ClusterSpec | None = None
        self._inside = ExitStack()

    def cluster_spec(self) -> ClusterSpec:
        """Return the tasks of the cluster.

        Raises:
          FailedPreconditionError: outside of the `with` block, where there are none.
        """
        if self._spec is None:
            raise FailedPreconditionError(
                "A RayClusterResolver has a cluster inside its `with` block only: "
                "with jt.ray.RayClusterResolver(workers=2, ps=1) as resolver: ..."
            )
        return self._spec

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Return the GPUs that Ray gives to each worker."""
        return {"GPU": self._gpus} if self._gpus and task_type == "worker" else {}

    # --- Its life --------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start all tasks, and wait until they serve.

        Raises:
          ImportError: when Ray is not installed.
          FailedPreconditionError: when the program is not connected to a cluster, or inside of the
            same block.
          ResourceExhaustedError: when there is no room in time; it says what was asked and what
            there is.
          DeadlineExceededError: when processes do not start in time.
          InvalidArgumentError: when the key in the environment can be guessed.
          UnavailableError: when a task fails at once.
        """
        if self._spec is not None:
            raise FailedPreconditionError("This RayClusterResolver has a cluster already.")
        with ExitStack() as undo:
            secret = job_secret()
            undo.enter_context(key_in_environment(secret))
            room = undo.enter_context(self._room)
            self._spec = self._start(room, secret, undo)
            undo.callback(self._forget)
            self._inside = undo.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._inside.close()

    def _start(self, room: Placement, secret: str, undo: ExitStack) -> ClusterSpec:
        cluster: dict[str, list[str]] = {}
        for task, address in room.addresses().items():
            cluster.setdefault(task.partition(":")[0], []).append(address)
        actors = {
            task: room.start(
                task,
                ServingTask,
                cluster,
                task.partition(":")[0],
                int(task.partition(":")[2]),
                {CLUSTER_KEY: secret},
                threads=thread_variables_apart(room.cores_of(task), room.devices),
                restarts=-1,
            )
            for task in room.tasks
        }
        for task, error in room.not_started(actors).items():
            why = str(error).strip().splitlines()[-1]
            raise UnavailableError(f"{task} cannot serve. Ray says: {why}") from error
        undo.callback(_say_goodbye, room.ray, list(actors.values()))
        return ClusterSpec(cluster)

    def _forget(self) -> None:
        self._spec = None


def _say_goodbye(ray: Any, actors: Sequence[Any]) -> None:
    """Let servers end by themselves; those that do not answer are ended anyway."""
    stopping = [actor.stop.remote() for actor in actors]
    ray.wait(stopping, num_returns=len(stopping), timeout=_SECONDS_TO_SAY_GOODBYE)
