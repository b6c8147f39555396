"""Where the description of a cluster comes from: the base of all resolvers, and the plain ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import jax

from ._spec import ClusterSpec

__all__ = ["ClusterResolver", "SimpleClusterResolver"]


class ClusterResolver(ABC):
    """Tells which tasks a cluster has, and which of them this process is.

    Subclasses say where they know it from, as `TFConfigClusterResolver` does:

    >>> class Alone(jt.cluster_resolver.ClusterResolver):
    ...     def cluster_spec(self):
    ...         return jt.ClusterSpec({})
    >>> bool(Alone().cluster_spec()), Alone().master()
    (False, '')
    """

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None

    @property
    def task_type(self) -> str | None:
        """The job of this process."""
        return self._task_type

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process."""
        return self._task_id

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol addresses begin with."""
        return self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Return the tasks of the cluster."""

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Return the address of a task, by default of this one; '' if it is not known which.

        Raises:
          ValueError: when the cluster has no such task.
        """
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            return ""
        address = self.cluster_spec().task_address(job, index)
        return format_master(address, rpc_layer or self.rpc_layer)

    @property
    def environment(self) -> str | None:
        """The environment the cluster runs in, such as 'google'; '' or None elsewhere."""
        return ""

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Return how many accelerators a task has, by their type.

        Args:
          task_type: the job of the task; this one's by default.
          task_id: the index of the task; this one's by default.
          config_proto: accepted for compatibility.

        Raises:
          ValueError: when it is another task, whose devices cannot be seen from here.
        """
        asked = (task_type or self.task_type, self.task_id if task_id is None else task_id)
        if asked != (self.task_type, self.task_id):
            raise ValueError(
                f"The accelerators of {asked[0]}:{asked[1]} cannot be counted from "
                f"{self.task_type}:{self.task_id}: JAX sees the devices of its own process only."
            )
        counts: dict[str, int] = {}
        for device in jax.local_devices():
            if device.platform != "cpu":
                kind = device.platform.upper()
                counts[kind] = counts.get(kind, 0) + 1
        return counts


def format_master(address: str, rpc_layer: str | None) -> str:
    """Return an address with the protocol in front, if there is one."""
    return f"{rpc_layer}://{address}" if rpc_layer and address else address


class SimpleClusterResolver(ClusterResolver):
    """Tells what it was told.

    >>> resolver = jt.cluster_resolver.SimpleClusterResolver(
    ...     jt.ClusterSpec({"worker": ["a:1", "b:1"]}), task_type="worker", task_id=1
    ... )
    >>> resolver.master("worker", 0, rpc_layer="grpc")
    'grpc://a:1'

    Args:
      cluster_spec: the tasks of the cluster.
      master: what `master()` returns when no task is named.
      task_type: the job of this process.
      task_id: the index of this process.
      environment: the environment the cluster runs in.
      num_accelerators: the accelerators of each task, by their type.
      rpc_layer: the protocol addresses begin with.

    Raises:
      TypeError: when `cluster_spec` or `master` is of another type.
    """

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Mapping[str, int] | None = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, ClusterSpec):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"cluster_spec must be a jt.ClusterSpec, got {cluster_spec!r}.")
        if not isinstance(master, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"master must be text, got {master!r}.")
        self._cluster_spec = cluster_spec
        self._master = master
        self._environment = environment
        self._num_accelerators = dict(num_accelerators or {})
        self.task_type = task_type
        self.task_id = task_id
        self.rpc_layer = rpc_layer

    def cluster_spec(self) -> ClusterSpec:
        """Return the tasks of the cluster."""
        return self._cluster_spec

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Return the address of a task, or what was given as `master` when none is named."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        return format_master(self._master, rpc_layer or self.rpc_layer)

    @property
    def environment(self) -> str:
        """The environment the cluster runs in."""
        return self._environment

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Return the accelerators that were given."""
        return dict(self._num_accelerators)
