"""What a cluster must be like to train with parameter servers, and what it says of its tasks."""

from __future__ import annotations

from ..cluster import ClusterResolver, ClusterSpec
from ..cluster._tf_config import TFConfigClusterResolver
from ..cluster._validation import check
from ..errors import InvalidArgumentError


def checked_cluster(resolver: ClusterResolver) -> ClusterSpec:
    """Return the cluster, in which everything that can be is checked without the network.

    Raises:
      ValueError: when it cannot work.
    """
    if not hasattr(resolver, "cluster_spec"):
        raise InvalidArgumentError(
            "ParameterServerStrategy needs a cluster resolver, such as "
            f"jt.cluster_resolver.TFConfigClusterResolver(), got {resolver!r}."
        )
    if isinstance(resolver, TFConfigClusterResolver):
        resolver.check()
    spec = resolver.cluster_spec()
    if not spec:
        raise InvalidArgumentError(
            "The cluster resolver tells of an empty cluster. ParameterServerStrategy needs at "
            "least one ps and at least one worker; is TF_CONFIG set?"
        )
    for job in ("ps", "worker"):
        if job not in spec.jobs or not spec.num_tasks(job):
            raise InvalidArgumentError(
                f"There must be at least one {job} in the cluster, and its jobs are "
                f"{', '.join(spec.jobs)}."
            )
    if resolver.task_type in ("ps", "worker"):
        raise InvalidArgumentError(
            f"This process is {resolver.task_type}:{resolver.task_id or 0}, and the strategy is "
            "created by the coordinator. Workers and parameter servers run "
            "jt.Server(cluster_spec, job_name, task_index).join(), or `jaxtribute server`."
        )
    if resolver.task_type == "evaluator":
        raise InvalidArgumentError(
            "This process is an evaluator, which works alone: with the strategy of the coordinator "
            "it would take the parameter servers away from training. Create the model without it, "
            "and restore what the coordinator saves, as jt.train.SidecarEvaluator does."
        )
    if resolver.task_type is not None:
        check(spec, resolver.task_type, resolver.task_id)
    return spec


def gpus_of_a_worker(resolver: ClusterResolver, spec: ClusterSpec) -> int:
    """Return how many GPUs each worker has, or 0 where that is not known.

    Raises:
      ValueError: when one has more than another.
    """
    try:
        found = {
            index: resolver.num_accelerators("worker", index).get("GPU", 0)
            for index in spec.task_indices("worker")
        }
    except ValueError:  # most resolvers know those of their own process only
        return 0
    if len(set(found.values())) > 1:
        each = ", ".join(f"worker:{index} has {gpus}" for index, gpus in found.items())
        raise InvalidArgumentError(
            f"All workers need the same number of GPUs, and {each}. Pass replicas_per_worker to "
            "use as many of each as all have."
        )
    return next(iter(found.values()))


def addresses(spec: ClusterSpec, job: str) -> list[str]:
    """Return the addresses of the tasks of a job, by index."""
    return [spec.task_address(job, index) for index in spec.task_indices(job)]
