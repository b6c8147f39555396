"""Which tasks a cluster consists of, and where they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ClusterSpec"]


class ClusterSpec:
    """The tasks of a cluster, by job, and the address of each.

    >>> spec = jt.ClusterSpec({"worker": ["host0:2222", "host1:2222"], "ps": {3: "ps3:2222"}})
    >>> spec.num_tasks("worker"), spec.task_address("ps", 3)
    (2, 'ps3:2222')

    Args:
      cluster: for each job a list of addresses, or a dict from the index of a task to its address;
        or another `ClusterSpec`.

    Raises:
      TypeError: when a job, an index or an address is of another type.
    """

    def __init__(self, cluster: Mapping[str, Any] | ClusterSpec) -> None:
        if isinstance(cluster, ClusterSpec):
            self._tasks: dict[str, dict[int, str]] = {j: dict(t) for j, t in cluster._tasks.items()}
            return
        if not isinstance(cluster, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                "A cluster is described by a dict from each job to its addresses, such as "
                f'{{"worker": ["host0:2222", "host1:2222"]}}, got {cluster!r}.'
            )
        self._tasks = {str(job): _tasks_of(str(job), tasks) for job, tasks in cluster.items()}

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._tasks)

    def num_tasks(self, job_name: str) -> int:
        """Return how many tasks a job has.

        Raises:
          ValueError: when there is no such job.
        """
        return len(self._job(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """Return the indices of the tasks of a job, sorted.

        Raises:
          ValueError: when there is no such job.
        """
        return sorted(self._job(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """Return the address of a task.

        Raises:
          ValueError: when there is no such job or task.
        """
        tasks = self._job(job_name)
        if task_index not in tasks:
            raise ValueError(
                f"The job {job_name!r} has no task {task_index!r}; it has {sorted(tasks)}."
            )
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """Return the addresses of a job by index, with None where a task is missing.

        >>> jt.ClusterSpec({"worker": {0: "a:1", 2: "b:1"}}).job_tasks("worker")
        ['a:1', None, 'b:1']

        Raises:
          ValueError: when there is no such job.
        """
        tasks = self._job(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def as_dict(self) -> dict[str, list[str] | dict[int, str]]:
        """Return a list of addresses for each job, or a dict by index if tasks are missing.

        >>> jt.ClusterSpec({"worker": {0: "a:1", 1: "b:1"}}).as_dict()
        {'worker': ['a:1', 'b:1']}
        """
        result: dict[str, list[str] | dict[int, str]] = {}
        for job, tasks in self._tasks.items():
            dense = sorted(tasks) == list(range(len(tasks)))
            result[job] = [tasks[i] for i in sorted(tasks)] if dense else dict(tasks)
        return result

    def as_cluster_def(self) -> dict[str, dict[int, str]]:
        """Return the tasks of each job by index, in a form that can be sent elsewhere."""
        return {job: dict(sorted(tasks.items())) for job, tasks in self._tasks.items()}

    def _job(self, name: str) -> dict[int, str]:
        if name not in self._tasks:
            raise ValueError(f"The cluster has no job {name!r}; it has {self.jobs}.")
        return self._tasks[name]

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClusterSpec) and self._tasks == other._tasks

    def __hash__(self) -> int:
        return hash(repr(self.as_cluster_def()))

    def __repr__(self) -> str:
        return f"ClusterSpec({self.as_dict()!r})"


def _tasks_of(job: str, tasks: Any) -> dict[int, str]:
    if isinstance(tasks, Mapping):
        numbered = {_index(job, index): address for index, address in tasks.items()}
    elif isinstance(tasks, (list, tuple)):
        numbered = dict(enumerate(tasks))
    else:
        raise TypeError(
            f"The tasks of the job {job!r} must be a list of addresses, or a dict from index to "
            f"address, got {tasks!r}."
        )
    for index, address in numbered.items():
        if not isinstance(address, str):
            raise TypeError(
                f"The address of {job}:{index} must be text such as 'host:2222', got {address!r}."
            )
    return numbered


def _index(job: str, index: Any) -> int:
    try:
        return int(index)
    except (TypeError, ValueError):
        raise TypeError(
            f"The tasks of the job {job!r} are numbered, and {index!r} is no number."
        ) from None
