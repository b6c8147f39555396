"""`jaxtribute server`: a worker or a parameter server that waits for its coordinator."""

from __future__ import annotations

import os

import click

from .._job import report
from ..cluster import ClusterSpec, Task, TFConfigClusterResolver, default_resolver
from ..cluster._validation import check
from ..coordinator import Server
from ..errors import JaxtributeError
from ._memory import keep_freed_memory

__all__ = ["server"]

_JOBS = ("worker", "ps")
_EXAMPLE = (
    """TF_CONFIG='{"cluster": {"chief": ["host0:2222"], "worker": ["host1:2222"], """
    """"ps": ["host2:2222"]}, "task": {"type": "worker", "index": 0}}'"""
)


@click.command()
@click.option(
    "--job",
    type=click.Choice(_JOBS),
    help="What this process is. Default: what TF_CONFIG says.",
)
@click.option(
    "--index",
    type=click.IntRange(min=0),
    help="Which of them it is. Default: what TF_CONFIG says.",
)
@click.option(
    "--no-encryption",
    is_flag=True,
    help="Do not encrypt what goes to other machines. Both sides still prove that they have the "
    "cluster's key. All tasks must agree on it.",
)
def server(job: str | None, index: int | None, no_encryption: bool) -> None:
    """Run a worker or a parameter server of a cluster.

    It finds the cluster, and its own place in it, in TF_CONFIG, and serves until it is ended with
    Ctrl-C or SIGTERM; the exit code is 0 then. The chief needs no server: it runs the program.
    """
    spec, task = own_task(job, index)
    _serve(spec, task, encryption=not no_encryption)


def own_task(job: str | None, index: int | None) -> tuple[ClusterSpec, Task]:
    """Return the cluster, and the task in it that this process is to serve as.

    Args:
      job: the job, instead of the one the environment tells.
      index: the index, instead of the one the environment tells.

    Raises:
      click.UsageError: when the environment describes no cluster, or no task that serves.
    """
    resolver = default_resolver()
    try:
        spec, told = resolver.cluster_spec(), resolver.task_type
        if spec and job is not None and job != told and index is None:
            index = _only_index(spec, job)  # the index that is told is that of another job
        if spec and isinstance(resolver, TFConfigClusterResolver):
            resolver = TFConfigClusterResolver(job, index)
            resolver.check()
        job, index = job or told, resolver.task_id if index is None else index
        if spec:
            check(spec, job, index)
    except (ValueError, TypeError, RuntimeError) as error:
        raise click.UsageError(str(error)) from error
    if not spec:
        said = "is not set" if "TF_CONFIG" not in os.environ else "describes no cluster"
        raise click.UsageError(
            f"TF_CONFIG {said}, and so nothing says which task this process is, nor where it "
            f"listens. It should look like this: {_EXAMPLE}"
        )
    if job is None:  # what is left out was found to be clear: there is only one task
        job = spec.jobs[0]
    if job == "chief":
        raise click.UsageError(
            "This process is the chief, which runs the program: start that with python. Only "
            "workers and parameter servers run a server."
        )
    if job not in _JOBS:
        raise click.UsageError(
            f"This process is the {job}, which works alone. Only workers and parameter servers run "
            "a server."
        )
    return spec, Task(job, spec.task_indices(job)[0] if index is None else index)


def _only_index(spec: ClusterSpec, job: str) -> int | None:
    """Return the index of the only task of a job; None where there is no such job.

    Raises:
      ValueError: when there are several.
    """
    indices = spec.task_indices(job) if job in spec.jobs else []
    if len(indices) > 1:
        raise ValueError(f"--job {job} needs --index, as the cluster has {job} {indices}.")
    return indices[0] if indices else None


class _Server(Server):
    """Tells the launcher, if there is one, that it listens."""

    def start(self) -> None:
        super().start()
        report(phase="serving")


def _serve(spec: ClusterSpec, task: Task, encryption: bool) -> None:
    """Serve until a signal comes.

    Raises:
      click.ClickException: when it cannot.
    """
    keep_freed_memory()
    try:
        # Not before `join`, which takes signals from then on.
        _Server(spec, task.job, task.index, start=False, encryption=encryption).join()
    except JaxtributeError as error:
        raise click.ClickException(f"{task}: {error}") from error
