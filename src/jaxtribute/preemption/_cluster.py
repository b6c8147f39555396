"""The workers that a checkpoint belongs to, and what runs on them."""

from __future__ import annotations

from .. import _context
from .._group import ALONE, Group
from ..checkpoint import Checkpoint
from ..checkpoint._objects import find
from ..cluster import ClusterResolver
from ..coordinator._coordinator import known_coordinator
from ..errors import FailedPreconditionError, InvalidArgumentError, OutOfRangeError
from ..strategies import ParameterServerStrategy
from ..workers import current_world

_TRAINING = ("chief", "worker")


def group_of(checkpoint: Checkpoint, resolver: ClusterResolver | None) -> Group:
    """Return the workers that save a checkpoint together.

    Raises:
      InvalidArgumentError: when this process is one that others tell what to do.
      FailedPreconditionError: when the workers have not joined.
    """
    groups: list[Group] = [find(checkpoint).group(), current_world() or ALONE]
    group = max(groups, key=lambda one: len(one.tasks))
    if resolver is not None:
        _check(group, resolver)
    return group


def _check(group: Group, resolver: ClusterResolver) -> None:
    spec = resolver.cluster_spec()
    if "ps" in spec.jobs:
        if resolver.task_type in ("worker", "ps"):
            raise InvalidArgumentError(
                f"This process is {resolver.task_type}:{resolver.task_id} of a parameter-server "
                "cluster, which keeps nothing that has to be saved here. The coordinator saves: "
                "create the handler there."
            )
        return
    workers = sum(spec.num_tasks(job) for job in spec.jobs if job in _TRAINING)
    if workers > 1 and len(group.tasks) == 1 and resolver.task_type in _TRAINING:
        raise FailedPreconditionError(
            f"The cluster has {workers} workers, and this one has not joined the others. Create "
            "the MultiWorkerMirroredStrategy before the handler."
        )


def finish_scheduled(checkpoint: Checkpoint) -> None:
    """Wait until workers have run everything that changes what is in a checkpoint.

    Raises:
      Exception: the first error of what was scheduled.
    """
    strategies = {v.distribute_strategy for v in find(checkpoint).variables.values()}
    if _context.has_strategy():
        strategies.add(_context.get_strategy())
    for strategy in strategies:
        if isinstance(strategy, ParameterServerStrategy):
            coordinator = known_coordinator(strategy)
            if coordinator is not None:
                coordinator.join()


def report(group: Group, error: Exception) -> None:
    """Have all workers fail because of an error; not because the data has come to its end."""
    if not isinstance(error, (StopIteration, OutOfRangeError)):
        group.give_up(f"it raised {type(error).__name__}: {error}")
