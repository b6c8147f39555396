"""The cluster that the environment variable TF_CONFIG describes."""

from __future__ import annotations

import json
import os
from typing import Any

from ._problems import EXAMPLE, raise_for
from ._resolver import ClusterResolver, format_master
from ._spec import ClusterSpec
from ._tf_config_text import find_text_problems

__all__ = ["TFConfigClusterResolver"]


class TFConfigClusterResolver(ClusterResolver):
    """Tells what the environment variable `TF_CONFIG` says, which is read anew each time.

    >>> import json, os
    >>> os.environ["TF_CONFIG"] = json.dumps(
    ...     {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}
    ... )
    >>> resolver = jt.cluster_resolver.TFConfigClusterResolver()
    >>> resolver.task_type, resolver.task_id, resolver.master()
    ('worker', 1, 'b:1')
    >>> del os.environ["TF_CONFIG"]

    Args:
      task_type: the job of this process, instead of the one in `TF_CONFIG`.
      task_id: the index of this process, instead of the one in `TF_CONFIG`.
      rpc_layer: the protocol addresses begin with, instead of the one in `TF_CONFIG`.
      environment: the environment the cluster runs in, instead of the one in `TF_CONFIG`.
    """

    def __init__(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        self._task_type = task_type
        self._task_id = task_id
        self._rpc_layer = rpc_layer
        self._environment = environment

    @property
    def task_type(self) -> str | None:
        """The job of this process."""
        own = self._task_type
        if own is None:
            own = _section("task").get("type")
        return None if own is None else str(own)

    @task_type.setter
    def task_type(self, task_type: str | None) -> None:
        self._task_type = task_type

    @property
    def task_id(self) -> int | None:
        """The index of this process."""
        if self._task_id is not None:
            return int(self._task_id)
        task = _section("task")
        return _index(task["index"]) if "index" in task else None

    @task_id.setter
    def task_id(self, task_id: int | None) -> None:
        self._task_id = task_id

    @property
    def rpc_layer(self) -> str | None:
        """The protocol addresses begin with."""
        return _config().get("rpc_layer") if self._rpc_layer is None else self._rpc_layer

    @rpc_layer.setter
    def rpc_layer(self, rpc_layer: str | None) -> None:
        self._rpc_layer = rpc_layer

    @property
    def environment(self) -> str | None:
        """The environment the cluster runs in."""
        return _config().get("environment") if self._environment is None else self._environment

    def cluster_spec(self) -> ClusterSpec:
        """Return the tasks of the cluster.

        Raises:
          ValueError: when `TF_CONFIG` is no JSON.
          TypeError: when it describes something else than a cluster.
        """
        return ClusterSpec(_config().get("cluster", {}))

    def check(self) -> None:
        """Refuse a `TF_CONFIG` that cannot work, as strategies do when they are made.

        Raises:
          InvalidArgumentError: with all that is wrong, and a corrected example.
        """
        text = os.environ.get("TF_CONFIG", "{}")
        raise_for(find_text_problems(text, self._task_type, self._task_id))

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Return the address of a task, by default of this one; '' where it runs alone.

        Raises:
          ValueError: when the cluster has no such task.
        """
        session_master = _config().get("session_master")
        if session_master is not None:
            return str(session_master)
        spec = self.cluster_spec()
        if not spec or (len(spec.jobs) == 1 and spec.num_tasks(spec.jobs[0]) == 1):
            return ""
        job = self.task_type if task_type is None else task_type
        index = self.task_id if task_id is None else task_id
        if job is None or index is None:
            raise ValueError(
                "TF_CONFIG describes a cluster, and not which of its tasks this process is: it "
                f'has no complete "task". It should look like this: {EXAMPLE}'
            )
        return format_master(spec.task_address(job, index), rpc_layer or self.rpc_layer)


def _config() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG", "{}")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        near = text[max(0, error.pos - 20) : error.pos + 20]
        raise ValueError(
            f"TF_CONFIG is not valid JSON: {error.msg} at character {error.pos}, near {near!r}. It "
            f"should look like this: {EXAMPLE}"
        ) from error
    if not isinstance(config, dict):
        raise TypeError(
            f"TF_CONFIG must be a JSON object, got {config!r}. It should look like this: {EXAMPLE}"
        )
    return config


def _section(name: str) -> dict[str, Any]:
    section = _config().get(name, {})
    if not isinstance(section, dict):
        raise TypeError(
            f'"{name}" in TF_CONFIG must be a JSON object, got {section!r}. It should look like '
            f"this: {EXAMPLE}"
        )
    return section


def _index(index: Any) -> int:
    try:
        return int(index)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f'"index" in the task of TF_CONFIG must be a number, got {index!r}. It should look '
            f"like this: {EXAMPLE}"
        ) from error
