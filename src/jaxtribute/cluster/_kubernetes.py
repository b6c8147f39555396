"""The cluster that the pods of a Kubernetes cluster make."""

from __future__ import annotations

import enum
import importlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import FailedPreconditionError
from ._address import Address
from ._resolver import ClusterResolver
from ._spec import ClusterSpec

__all__ = ["KubernetesClusterResolver", "KubernetesExecutableLocation"]

_SECONDS_TO_ANSWER = 30.0


class KubernetesExecutableLocation(enum.Enum):
    """Where the program runs, which decides how it reaches the Kubernetes API."""

    WITHIN_CLUSTER = 0
    """In a pod: with the pod's service account."""
    OFF_CLUSTER = 1
    """Elsewhere: as `kubectl` does."""


class KubernetesClusterResolver(ClusterResolver):
    """Tells which pods match label selectors, asking Kubernetes anew each time.

    The tasks of a job are the pods of its first selector, then those of the next, each in the order
    of their names, in which numbers count as numbers. All must be running.

    This process is the pod whose name or host name is in `HOSTNAME`, unless it is told otherwise:

    >>> from types import SimpleNamespace as Object
    >>> def pod(name, ip):
    ...     status = Object(phase="Running", pod_ip=ip, host_ip="10.0.0.1")
    ...     return Object(metadata=Object(name=name), spec=Object(hostname=None), status=status)
    >>> class Client:
    ...     def list_pod_for_all_namespaces(self, label_selector):
    ...         return Object(items=[pod("train-1", "10.1.0.8"), pod("train-0", "10.1.0.7")])
    >>> resolver = jt.cluster_resolver.KubernetesClusterResolver(
    ...     {"worker": ["job-name=train"]}, override_client=Client()
    ... )
    >>> resolver.cluster_spec()
    ClusterSpec({'worker': ['10.1.0.7:8470', '10.1.0.8:8470']})
    >>> resolver.task_type, resolver.task_id = "worker", 1
    >>> resolver.master()
    'grpc://10.1.0.8:8470'

    Args:
      job_to_label_mapping: the label selectors of each job, by default
        `{"worker": ["job-name=tensorflow"]}`.
      tf_server_port: the port every task listens on.
      rpc_layer: the protocol addresses begin with.
      override_client: a `kubernetes.client.CoreV1Api`, or what has its
        `list_pod_for_all_namespaces`. By default one is made for `executable_location`.
      executable_location: where the program runs.

    Raises:
      ImportError: when the Python client of Kubernetes is needed and not installed.
      ValueError: when `executable_location` is none.
    """

    def __init__(
        self,
        job_to_label_mapping: Mapping[str, Sequence[str]] | None = None,
        tf_server_port: int = 8470,
        rpc_layer: str | None = "grpc",
        override_client: Any = None,
        executable_location: KubernetesExecutableLocation = (
            KubernetesExecutableLocation.WITHIN_CLUSTER
        ),
    ) -> None:
        self._selectors = dict(job_to_label_mapping or {"worker": ["job-name=tensorflow"]})
        self._port = tf_server_port
        self._options: dict[str, Any] = {}
        self._client = override_client
        if override_client is None:
            self._client = _client(executable_location)
            self._options = {"_request_timeout": _SECONDS_TO_ANSWER}
        self.rpc_layer = rpc_layer

    @property
    def task_type(self) -> str | None:
        """The job of this process: what was set, or that of the pod it runs in, if it is known."""
        return self._own_task()[0] if self._task_type is None else self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process: what was set, or that of its pod, if it is known."""
        return self._own_task()[1] if self._task_id is None else self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    def cluster_spec(self) -> ClusterSpec:
        """Return the tasks of the cluster, as Kubernetes knows them at the moment.

        Raises:
          FailedPreconditionError: when a pod is not running.
        """
        return ClusterSpec(
            {job: [self._address(pod) for pod in pods] for job, pods in self._pods().items()}
        )

    def _pods(self) -> dict[str, list[Any]]:
        pods: dict[str, list[Any]] = {}
        for job, selectors in self._selectors.items():
            pods[job] = []
            for selector in selectors:
                found = self._client.list_pod_for_all_namespaces(
                    label_selector=selector, **self._options
                )
                pods[job] += sorted(found.items, key=_name_with_numbers)
        return pods

    def _address(self, pod: Any) -> str:
        if pod.status.phase != "Running":
            raise FailedPreconditionError(
                f"The pod {pod.metadata.name!r} is not running; its phase is {pod.status.phase!r}. "
                "Start training when all pods run, or describe the cluster by TF_CONFIG, with "
                "which workers wait for each other."
            )
        # They are the same with `hostNetwork`, and only the pod's is right without.
        ip = getattr(pod.status, "pod_ip", None)
        return str(Address(ip if isinstance(ip, str) else pod.status.host_ip, self._port))

    def _own_task(self) -> tuple[str | None, int | None]:
        host = os.environ.get("HOSTNAME")
        for job, pods in self._pods().items() if host else ():
            for index, pod in enumerate(pods):
                if host in (pod.metadata.name, getattr(pod.spec, "hostname", None)):
                    return job, index
        # In an Indexed Job of Kubernetes, which numbers its pods by name.
        number = os.environ.get("JOB_COMPLETION_INDEX", "")
        jobs = list(self._selectors)
        if number.isdecimal() and len(jobs) == 1 and len(self._selectors[jobs[0]]) == 1:
            return jobs[0], int(number)
        return None, None


def _name_with_numbers(pod: Any) -> list[tuple[bool, int, str]]:
    """Return a key by which `train-10` comes after `train-9`."""
    parts = re.split(r"(\d+)", pod.metadata.name)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def _client(location: Any) -> Any:
    load = {
        KubernetesExecutableLocation.WITHIN_CLUSTER: "load_incluster_config",
        KubernetesExecutableLocation.OFF_CLUSTER: "load_kube_config",
    }
    if location not in load:
        raise ValueError(
            f"executable_location must be a KubernetesExecutableLocation, got {location!r}."
        )
    try:
        # Here, since few programs need it, and fewer have it.
        config = importlib.import_module("kubernetes.config")
        client = importlib.import_module("kubernetes.client")
    except ImportError as error:
        raise ImportError(
            "KubernetesClusterResolver needs the Python client of Kubernetes: "
            "pip install 'jaxtribute[kubernetes]'"
        ) from error
    getattr(config, load[location])()
    return client.CoreV1Api()
