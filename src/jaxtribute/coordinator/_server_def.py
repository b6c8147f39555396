"""Which task of which cluster a server is, from the ways in which users say so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..cluster import ClusterResolver, ClusterSpec, Task, TFConfigClusterResolver
from ..cluster._validation import check
from ..errors import InvalidArgumentError

__all__ = ["ServerDef", "server_def"]

_SERVED = ("worker", "ps")


@dataclass(frozen=True)
class ServerDef:
    """A task of a cluster that a `jt.Server` is."""

    cluster: ClusterSpec
    job_name: str
    task_index: int
    protocol: str | None = None

    @property
    def task(self) -> Task:
        """The task."""
        return Task(self.job_name, self.task_index)

    @property
    def address(self) -> str:
        """Where it listens."""
        return self.cluster.task_address(self.job_name, self.task_index)


def server_def(
    given: Any, job_name: str | None, task_index: int | None, protocol: str | None
) -> ServerDef:
    """Return the task that is meant.

    Args:
      given: a cluster, or what knows one: a `ServerDef`, a `ClusterResolver`.
      job_name: the job; may be left out where only one is possible.
      task_index: the index; may be left out where only one is possible.
      protocol: kept as it is.

    Raises:
      TypeError: when an argument is of another type.
      ValueError: when the cluster cannot work, or the task is not in it or does not serve.
    """
    if task_index is not None and (isinstance(task_index, bool) or not _is_int(task_index)):
        raise TypeError(f"task_index must be a number, got {task_index!r}.")
    if isinstance(given, ServerDef):
        spec = given.cluster
        job_name = given.job_name if job_name is None else job_name
        task_index = given.task_index if task_index is None else task_index
        protocol = given.protocol if protocol is None else protocol
    elif isinstance(given, ClusterResolver):
        if isinstance(given, TFConfigClusterResolver):
            given.check()
        spec = given.cluster_spec()
        job_name = given.task_type if job_name is None else job_name
        task_index = given.task_id if task_index is None else task_index
    elif isinstance(given, (ClusterSpec, Mapping)):
        spec = ClusterSpec(given)
    else:
        raise TypeError(
            "A server is given the cluster it belongs to, as a jt.ClusterSpec, a dict or a "
            f"cluster resolver, got {given!r}."
        )
    if not spec:
        raise InvalidArgumentError(
            "A server belongs to a cluster, and this one is empty. Is TF_CONFIG set? It should "
            'look like {"cluster": {"chief": ["host0:2222"], "worker": ["host1:2222"], "ps": '
            '["host2:2222"]}, "task": {"type": "worker", "index": 0}}.'
        )
    task = _the_task(spec, job_name, task_index)
    return ServerDef(spec, task.job, task.index, protocol)


def _the_task(spec: ClusterSpec, job_name: str | None, task_index: int | None) -> Task:
    if job_name == "chief":
        raise InvalidArgumentError(
            "The chief is the coordinator, and runs no server: it connects to the workers and the "
            "parameter servers. Make a jt.experimental.ParameterServerStrategy there, and servers "
            'on "worker" and "ps".'
        )
    if job_name == "evaluator":
        raise InvalidArgumentError(
            "An evaluator runs no server: it works alone, with the checkpoints that the "
            'coordinator saves. Run servers on "worker" and "ps".'
        )
    possible = [
        Task(job, index)
        for job in spec.jobs
        if job in _SERVED and job_name in (None, job)
        for index in spec.task_indices(job)
        if task_index in (None, index)
    ]
    if len(possible) != 1 and (job_name is None or len(possible) > 1):
        asked = f"job_name={job_name!r}, task_index={task_index!r}"
        found = ", ".join(map(str, possible)) or "none of its workers and parameter servers"
        raise InvalidArgumentError(
            f"Which task of the cluster is this server? With {asked} it may be: {found}. Say "
            'which, as in jt.Server(cluster, job_name="worker", task_index=0).'
        )
    task = possible[0] if possible else None
    check(spec, task.job if task else job_name, task.index if task else task_index)
    assert task is not None  # as `check` refuses all others
    return task


def _is_int(value: Any) -> bool:
    return hasattr(type(value), "__index__")
