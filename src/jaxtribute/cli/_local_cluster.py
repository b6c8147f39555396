"""The tasks of a cluster on this machine, and the environment each of them is given.

Nothing here starts a process. What the user has set stays as it is, apart from `TF_CONFIG`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .._job import CLUSTER_KEY, RESTART_COUNT, STATUS_SOCKET
from .._threads import requested_cpu_devices, thread_variables, thread_variables_apart

EVALUATOR = "evaluator:0"
"""A task beside the cluster, which has no part in it."""

_HOST = "127.0.0.1"
_WORKER_TO_SERVER = 3


def task_names(workers: int, servers: int = 0) -> list[str]:
    """Return the names of the tasks of a cluster; one with parameter servers has a chief first."""
    chief = ["chief:0"] if servers else []
    return [
        *chief,
        *(f"worker:{index}" for index in range(workers)),
        *(f"ps:{index}" for index in range(servers)),
    ]


def available_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def tf_config(tasks: Sequence[str], ports: Sequence[int], index: int) -> str:
    """Return the `TF_CONFIG` of the task at one place in the list of all."""
    return _tf_config(tasks, ports, tasks[index])


def _tf_config(tasks: Sequence[str], ports: Sequence[int], own: str) -> str:
    cluster: dict[str, list[str]] = {}
    for task, port in zip(tasks, ports, strict=True):
        cluster.setdefault(task.partition(":")[0], []).append(f"{_HOST}:{port}")
    job, _, number = own.partition(":")
    return json.dumps({"cluster": cluster, "task": {"type": job, "index": int(number)}})


def thread_counts(cores: int, workers: int, devices: int) -> dict[str, str]:
    """Return the variables that divide the cores between workers of so many CPU devices each."""
    return thread_variables(max(1, cores // workers), devices)


def server_thread_counts(cores: int, workers: int, servers: int) -> tuple[int, int]:
    """Return how many cores a worker gets, and how many a parameter server.

    Workers compute, and get most. The chief gets as many as a server, which are not set aside for
    it: it waits for the others nearly all the time.
    """
    server = max(1, cores // (_WORKER_TO_SERVER * workers + servers))
    return max(1, (cores - server * servers) // workers), server


@dataclass(frozen=True)
class LocalCluster:
    """A cluster on this machine, as the launcher was asked to start it."""

    workers: int
    devices_per_worker: int | None
    cores: int
    cluster_key: str
    """What its tasks recognise each other by; empty for the key that is this user's."""
    status_socket: str
    servers: int = 0
    """How many parameter servers; with one or more there is a chief as well."""
    module_path: str = ""
    """Where workers and servers, which do not run the script, find the modules beside it."""

    @property
    def tasks(self) -> list[str]:
        """The names of its tasks."""
        return task_names(self.workers, self.servers)

    def environment(
        self, base: Mapping[str, str], ports: Sequence[int], index: int, restarts: int
    ) -> dict[str, str]:
        """Return the environment of one task.

        Args:
          base: the environment of the launcher.
          ports: one for each task.
          index: which task.
          restarts: how often it has been started again.
        """
        return self._environment(base, ports, self.tasks[index], restarts)

    def evaluator_environment(
        self, base: Mapping[str, str], ports: Sequence[int], restarts: int
    ) -> dict[str, str]:
        """Return the environment of an evaluator beside the tasks.

        Args:
          base: the environment of the launcher.
          ports: one for each task of the cluster.
          restarts: how often it has been started again.
        """
        return self._environment(base, ports, EVALUATOR, restarts)

    def _environment(
        self, base: Mapping[str, str], ports: Sequence[int], task: str, restarts: int
    ) -> dict[str, str]:
        job = task.partition(":")[0]
        requested: dict[str, str] = {}
        # The chief as well: its strategy has as many replicas as that of a worker.
        if self.devices_per_worker is not None and job != "ps":
            requested["JAX_NUM_CPU_DEVICES"] = str(self.devices_per_worker)
        if self.module_path and job in ("worker", "ps"):
            inherited = base.get("PYTHONPATH")
            paths = [self.module_path, *([inherited] if inherited else [])]
            requested["PYTHONPATH"] = os.pathsep.join(paths)
        defaults = {"PYTHONUNBUFFERED": "1"}
        if self.cluster_key:
            defaults[CLUSTER_KEY] = self.cluster_key
        return {
            **self._thread_counts(job, requested_cpu_devices({**base, **requested})),
            **defaults,
            **base,
            **requested,
            **_without_proxies(base),
            "TF_CONFIG": _tf_config(self.tasks, ports, task),
            STATUS_SOCKET: self.status_socket,
            RESTART_COUNT: str(restarts),
        }

    def _thread_counts(self, job: str, devices: int) -> dict[str, str]:
        if not self.servers and job != "evaluator":
            return thread_counts(self.cores, self.workers, devices)
        # An evaluator gets as many as a server: it is not to keep workers from theirs.
        worker, server = server_thread_counts(self.cores, self.workers, self.servers or 1)
        share = worker if job == "worker" else server
        return thread_variables_apart(share, devices)


def proxies(environment: Mapping[str, str]) -> list[str]:
    """Return the names of the variables that send connections through a proxy."""
    return sorted(
        name
        for name, value in environment.items()
        if value and name.lower().endswith("_proxy") and name.lower() != "no_proxy"
    )


def _without_proxies(base: Mapping[str, str]) -> dict[str, str]:
    """Return what keeps gRPC from looking for the other workers behind a proxy."""
    if not proxies(base):
        return {}
    excepted = base.get("no_proxy") or base.get("NO_PROXY") or ""
    hosts = [host for host in excepted.split(",") if host]
    hosts += [host for host in (_HOST, "localhost") if host not in hosts]
    return {"no_proxy": ",".join(hosts), "NO_PROXY": ",".join(hosts)}
