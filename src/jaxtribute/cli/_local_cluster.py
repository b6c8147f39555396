"""The tasks of a cluster on this machine, and the environment each of them is given.

Nothing here starts a process. What the user has set stays as it is, apart from `TF_CONFIG`.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .._job import CLUSTER_KEY, RESTART_COUNT, STATUS_SOCKET

_HOST = "127.0.0.1"
_THREADS_A_DEVICE = 4  # XLA's CPU collectives need two; the rest is for the next step


def task_names(workers: int) -> list[str]:
    """Return the names of the tasks of a cluster."""
    return [f"worker:{index}" for index in range(workers)]


def available_cores() -> int:
    """Return how many cores this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        return os.cpu_count() or 1


def free_ports(count: int) -> list[int]:
    """Return ports of the loopback interface that are free at the moment, all different."""
    sockets = [socket.socket(socket.AF_INET, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for each in sockets:  # all bound at the same time, so that no port is given twice
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def tf_config(ports: Sequence[int], index: int) -> str:
    """Return the `TF_CONFIG` of one worker."""
    addresses = [f"{_HOST}:{port}" for port in ports]
    return json.dumps(
        {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    )


def thread_counts(cores: int, workers: int, devices: int) -> dict[str, str]:
    """Return the variables that divide the cores between workers of so many CPU devices each."""
    share = max(1, cores // workers)
    # A collective holds one thread of the pool for each device until all have come, so a pool
    # about as small as the number of devices deadlocks.
    pool = max(share, _THREADS_A_DEVICE * devices)
    libraries = dict.fromkeys(
        ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], str(share)
    )
    return {"PJRT_NPROC": str(pool), **libraries}


@dataclass(frozen=True)
class LocalCluster:
    """A cluster of workers on this machine, as the launcher was asked to start it."""

    workers: int
    devices_per_worker: int | None
    cores: int
    cluster_key: str
    status_socket: str

    def environment(
        self, base: Mapping[str, str], ports: Sequence[int], index: int, restarts: int
    ) -> dict[str, str]:
        """Return the environment of one worker.

        Args:
          base: the environment of the launcher.
          ports: one for each worker.
          index: which worker.
          restarts: how often the workers have been started again.
        """
        requested: dict[str, str] = {}
        if self.devices_per_worker is not None:
            requested["JAX_NUM_CPU_DEVICES"] = str(self.devices_per_worker)
        devices = self.devices_per_worker or requested_cpu_devices(base)
        defaults = thread_counts(self.cores, self.workers, devices) | {
            "PYTHONUNBUFFERED": "1",
            CLUSTER_KEY: self.cluster_key,
        }
        return {
            **defaults,
            **base,
            **requested,
            **_without_proxies(base),
            "TF_CONFIG": tf_config(ports, index),
            STATUS_SOCKET: self.status_socket,
            RESTART_COUNT: str(restarts),
        }


def requested_cpu_devices(environment: Mapping[str, str]) -> int:
    """Return how many CPU devices JAX will create, as far as the environment tells."""
    configured = environment.get("JAX_NUM_CPU_DEVICES", "")
    if configured.isdecimal():
        return max(1, int(configured))
    flags = environment.get("XLA_FLAGS", "")
    forced = re.search(r"--xla_force_host_platform_device_count=(\d+)", flags)
    return int(forced[1]) if forced else 1


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
