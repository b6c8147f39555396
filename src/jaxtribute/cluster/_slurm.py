"""The cluster that Slurm started this process in."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from .._devices import jax_has_started
from ..errors import FailedPreconditionError, InvalidArgumentError
from ._address import Address
from ._resolver import ClusterResolver
from ._slurm_lists import deal, expand_counts, expand_hosts
from ._spec import ClusterSpec

__all__ = ["SlurmClusterResolver"]

_VISIBLE = "CUDA_VISIBLE_DEVICES"

# What was written there last, so that a share is not divided again by the next resolver.
_visible_set: str | None = None


class SlurmClusterResolver(ClusterResolver):
    """Tells what Slurm tells the tasks of a job step, that is, of one `srun`.

    >>> from unittest import mock
    >>> step = {
    ...     "SLURM_PROCID": "2",
    ...     "SLURM_STEP_NODELIST": "node[01-02]",
    ...     "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    ... }
    >>> with mock.patch.dict("os.environ", step):
    ...     resolver = jt.cluster_resolver.SlurmClusterResolver({"chief": 1, "worker": 3})
    >>> resolver.get_task_info(), resolver.master()
    (('worker', 1), 'grpc://node02:8888')

    The tasks of a node listen on `port_base`, `port_base + 1` and so on. GPUs of a node are divided
    between its tasks by setting `CUDA_VISIBLE_DEVICES`, unless Slurm has done it already
    (`--gpus-per-task`). JAX looks at it only when it starts, so the resolver has to be made before.

    Args:
      jobs: how many tasks each job has, in the order in which Slurm numbers them; by default all
        tasks are of the job `worker`.
      port_base: the port of the first task of a node.
      gpus_per_node: how many GPUs a node has; by default as many as are visible.
      gpus_per_task: how many GPUs a task gets; by default an even share.
      tasks_per_node: how many tasks a node has: a number, or a dict from the names of the nodes; by
        default Slurm is believed.
      auto_set_gpu: whether to divide the GPUs.
      rpc_layer: the protocol addresses begin with.

    Raises:
      FailedPreconditionError: outside of a job step; when there are not as many tasks or GPUs as
        asked for; when JAX has started too early for dividing GPUs.
      InvalidArgumentError: when a variable of Slurm's cannot be read.
    """

    def __init__(
        self,
        jobs: Mapping[str, int] | None = None,
        port_base: int = 8888,
        gpus_per_node: int | None = None,
        gpus_per_task: int | None = None,
        tasks_per_node: int | Mapping[str, int] | None = None,
        auto_set_gpu: bool = True,
        rpc_layer: str | None = "grpc",
    ) -> None:
        rank = _number("SLURM_PROCID")
        hosts = _hosts()
        counts = _counts(hosts, tasks_per_node)
        places = deal(counts, _at_a_time())
        jobs = {"worker": len(places)} if jobs is None else dict(jobs)
        if sum(jobs.values()) != len(places) or rank >= len(places):
            raise FailedPreconditionError(
                f"The jobs {jobs} have {sum(jobs.values())} tasks, and Slurm runs {len(places)} of "
                f"them, of which this is number {rank}. Start as many as the jobs have: "
                f"srun --ntasks={sum(jobs.values())}."
            )
        _check_place(rank, places[rank])
        addresses = iter(str(Address(hosts[node], port_base + local)) for node, local in places)
        self._cluster_spec = ClusterSpec(
            {job: [next(addresses) for _ in range(count)] for job, count in jobs.items()}
        )
        own = [(job, index) for job, count in jobs.items() for index in range(count)][rank]
        self.task_type, self.task_id = own
        self.rpc_layer = rpc_layer
        self._gpus_per_task = gpus_per_task
        if auto_set_gpu:
            node, local = places[rank]
            _divide_gpus(local, counts[node], gpus_per_node, gpus_per_task)

    def cluster_spec(self) -> ClusterSpec:
        """Return the tasks of the cluster."""
        return self._cluster_spec

    def get_task_info(self) -> tuple[str | None, int | None]:
        """Return the job and the index of this process."""
        return self.task_type, self.task_id

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Return the GPUs of a task: as many as were given for each, or those JAX sees here.

        Raises:
          ValueError: when it is another task, and `gpus_per_task` was not given.
        """
        if self._gpus_per_task is not None:
            return {"GPU": self._gpus_per_task}
        return super().num_accelerators(task_type, task_id, config_proto)


def _variable(*names: str) -> str:
    for name in names:
        if os.environ.get(name):
            return os.environ[name]
    raise FailedPreconditionError(
        f"The environment variable {' or '.join(names)} is not set, so this is no process of a "
        "Slurm job step. Start the program with srun, as in: srun --ntasks=2 python train.py"
    )


def _number(name: str) -> int:
    text = _variable(name)
    if not text.isdecimal():
        raise InvalidArgumentError(
            f"The environment variable {name} must be a number, is {text!r}."
        )
    return int(text)


def _hosts() -> list[str]:
    text = _variable("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST")
    try:
        return expand_hosts(text)
    except ValueError as error:
        raise InvalidArgumentError(f"SLURM_STEP_NODELIST cannot be read: {error}") from error


def _counts(hosts: list[str], given: int | Mapping[str, int] | None) -> list[int]:
    if isinstance(given, int):
        return [given] * len(hosts)
    if given is not None:
        missing = [host for host in hosts if host not in given]
        if missing:
            raise InvalidArgumentError(
                f"tasks_per_node says nothing about {', '.join(missing)}; the step runs on "
                f"{', '.join(hosts)}."
            )
        return [given[host] for host in hosts]
    text = _variable("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    try:
        counts = expand_counts(text)
    except ValueError as error:
        raise InvalidArgumentError(f"SLURM_STEP_TASKS_PER_NODE cannot be read: {error}") from error
    if len(counts) != len(hosts):
        raise InvalidArgumentError(
            f"SLURM_STEP_TASKS_PER_NODE is {text!r}, which is about {len(counts)} nodes, and the "
            f"step runs on {len(hosts)}: {', '.join(hosts)}."
        )
    return counts


def _at_a_time() -> int | None:
    """Return how many tasks in a row Slurm puts on a node, None for as many as fit."""
    distribution = os.environ.get("SLURM_DISTRIBUTION", "block")
    if distribution.startswith("cyclic"):
        return 1
    if distribution.startswith("plane"):
        return _number("SLURM_DIST_PLANESIZE")
    return None


def _check_place(rank: int, place: tuple[int, int]) -> None:
    """Compare with what Slurm says of this task; a wrong guess would make all wait for nobody."""
    names = ("SLURM_NODEID", "SLURM_LOCALID")
    actual = tuple(int(os.environ.get(name) or place[i]) for i, name in enumerate(names))
    if actual != place:
        raise FailedPreconditionError(
            f"Task {rank} should be number {place[1]} on node {place[0]}, and Slurm has put it at "
            f"{actual[1]} on node {actual[0]} (SLURM_LOCALID, SLURM_NODEID). Tasks are expected to "
            "fill node after node: start them with srun --distribution=block."
        )


def _divide_gpus(
    local: int, tasks: int, gpus_per_node: int | None, gpus_per_task: int | None
) -> None:
    """Leave this task its share of the GPUs of its node."""
    global _visible_set
    if tasks == 1 and gpus_per_task is None and gpus_per_node is None:
        return
    visible = os.environ.get(_VISIBLE)
    # Of what Slurm has bound to single tasks, each sees no more than its own.
    bound = "SLURM_GPUS_PER_TASK" in os.environ or "gpu" in os.environ.get(
        "SLURM_TRES_PER_TASK", ""
    )
    if bound or (visible is not None and visible == _visible_set):
        return
    if gpus_per_node is None:
        gpus = visible.split(",") if visible else _gpus_of_node()
    else:
        gpus = (
            visible.split(",")[:gpus_per_node] if visible else list(map(str, range(gpus_per_node)))
        )
    each = len(gpus) // tasks if gpus_per_task is None else gpus_per_task
    if not gpus and not gpus_per_task:
        return
    if each == 0 or each * tasks > len(gpus):
        raise FailedPreconditionError(
            f"{tasks} tasks on this node need {max(each, 1)} GPU(s) each, and it has {len(gpus)}. "
            "Start fewer tasks per node, ask Slurm for more GPUs, or let tasks share them with "
            "auto_set_gpu=False."
        )
    if jax_has_started():
        raise FailedPreconditionError(
            f"The {len(gpus)} GPUs of this node cannot be divided between its {tasks} tasks any "
            "more, since JAX has started. Make the SlurmClusterResolver at the top of the program, "
            "let Slurm divide them (srun --gpus-per-task), or share them with auto_set_gpu=False."
        )
    _visible_set = ",".join(gpus[local * each : (local + 1) * each])
    os.environ[_VISIBLE] = _visible_set


def _gpus_of_node() -> list[str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    listed = subprocess.run(
        [command, "--list-gpus"], capture_output=True, text=True, timeout=60, check=False
    )
    lines = [line for line in listed.stdout.splitlines() if line.startswith("GPU ")]
    return [str(number) for number in range(len(lines))]
