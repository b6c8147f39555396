"""The workers that train together synchronously, in the order in which they are numbered."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import InvalidArgumentError
from ._resolver import ClusterResolver
from ._spec import ClusterSpec
from ._task import Task
from ._tf_config import TFConfigClusterResolver
from ._validation import check

__all__ = ["Workers", "resolve", "workers_of"]


@dataclass(frozen=True)
class Workers:
    """The processes of synchronous training; the first one is the chief."""

    tasks: tuple[Task, ...]
    addresses: tuple[str, ...]
    index: int
    """Which of them this process is."""

    @property
    def task(self) -> Task:
        """The task of this process."""
        return self.tasks[self.index]


def resolve(resolver: ClusterResolver) -> Workers | None:
    """Return the workers a resolver tells of, or None for a process that works alone.

    Everything that can be checked without the network is checked.

    Raises:
      InvalidArgumentError: with all that is wrong, and a corrected example.
    """
    if isinstance(resolver, TFConfigClusterResolver):
        resolver.check()  # first: reading stops at the first mistake, and tells of no other
    return workers_of(resolver.cluster_spec(), resolver.task_type, resolver.task_id)


def workers_of(spec: ClusterSpec, task_type: str | None, task_id: int | None) -> Workers | None:
    """Return the workers of a cluster in their order, or None for a process that works alone.

    The chief comes first, then the workers by index; where there is no chief, the first worker is
    it. An evaluator works alone, and so does a program without a cluster.

    Raises:
      InvalidArgumentError: when the description cannot work, or this process is no worker.
    """
    check(spec, task_type, task_id)
    if not spec or task_type == "evaluator":
        return None
    addresses = {
        Task(job, index): spec.task_address(job, index)
        for job in ("chief", "worker")
        if job in spec.jobs
        for index in spec.task_indices(job)
    }
    if task_type == "ps":
        raise InvalidArgumentError(
            f"This process is ps:{task_id or 0}, a parameter server, and takes no part in "
            "synchronous training, in which every worker keeps all variables. Start only the chief "
            "and the workers, or train with ParameterServerStrategy."
        )
    if not addresses:
        raise InvalidArgumentError(
            f"The cluster has no task that trains: its jobs are {', '.join(spec.jobs)}. "
            'Synchronous training needs a "worker", and may have a "chief", as in '
            '{"worker": ["host0:2222", "host1:2222"]}.'
        )
    tasks = tuple(addresses)
    own = [t for t in tasks if task_type in (None, t.job) and task_id in (None, t.index)]
    return Workers(tasks, tuple(addresses.values()), tasks.index(own[0]))
