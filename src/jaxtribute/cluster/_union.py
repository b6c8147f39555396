"""Several resolvers as one."""

from __future__ import annotations

from typing import Any

from ._resolver import ClusterResolver
from ._spec import ClusterSpec

__all__ = ["UnionResolver"]

_OPTIONS = ("rpc_layer", "task_type", "task_id")


class UnionResolver(ClusterResolver):
    """Puts the clusters of several resolvers together.

    >>> first = jt.cluster_resolver.SimpleClusterResolver(jt.ClusterSpec({"worker": ["a:1"]}))
    >>> second = jt.cluster_resolver.SimpleClusterResolver(jt.ClusterSpec({"worker": ["b:1"]}))
    >>> jt.cluster_resolver.UnionResolver(first, second).cluster_spec()
    ClusterSpec({'worker': ['a:1', 'b:1']})

    Args:
      *args: the resolvers. The first one tells what this process is.
      **kwargs: `rpc_layer`, `task_type` or `task_id`, to be told instead.

    Raises:
      ValueError: without resolvers, or for another keyword.
      TypeError: when something is no resolver.
    """

    def __init__(self, *args: ClusterResolver, **kwargs: Any) -> None:
        unknown = sorted(kwargs.keys() - set(_OPTIONS))
        if unknown:
            raise ValueError(
                f"UnionResolver takes the keywords {', '.join(_OPTIONS)}, got {', '.join(unknown)}."
            )
        if not args:
            raise ValueError("UnionResolver needs at least one resolver.")
        for resolver in args:
            if not isinstance(resolver, ClusterResolver):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"UnionResolver takes resolvers, got {resolver!r}.")
        self._resolvers = args
        first = args[0]
        self.rpc_layer = kwargs.get("rpc_layer", first.rpc_layer)
        self.task_type = kwargs.get("task_type", first.task_type)
        self.task_id = kwargs.get("task_id", first.task_id)

    def cluster_spec(self) -> ClusterSpec:
        """Return all tasks: lists of one job one after the other, dicts by index.

        Raises:
          KeyError: when two tasks of a job have the same index.
        """
        specs = [resolver.cluster_spec().as_dict() for resolver in self._resolvers]
        jobs = list(dict.fromkeys(job for spec in specs for job in spec))
        return ClusterSpec({job: _joined(job, [s[job] for s in specs if job in s]) for job in jobs})

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Return the address of a task, or the first `master` any of the resolvers knows."""
        if task_type is not None and task_id is not None:
            return super().master(task_type, task_id, rpc_layer)
        masters = (resolver.master(rpc_layer=rpc_layer) for resolver in self._resolvers)
        return next((master for master in masters if master), "")

    @property
    def environment(self) -> str | None:
        """The environment of the first resolver."""
        return self._resolvers[0].environment

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,
    ) -> dict[str, int]:
        """Return the accelerators the first resolver knows of."""
        return self._resolvers[0].num_accelerators(task_type, task_id, config_proto)


def _joined(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    if all(isinstance(part, list) for part in parts):
        return [address for part in parts for address in part]  # pyright: ignore[reportReturnType]
    joined: dict[int, str] = {}
    for part in parts:
        numbered = dict(enumerate(part)) if isinstance(part, list) else part
        for index, address in numbered.items():
            if index in joined:
                raise KeyError(
                    f"The task {job}:{index} is described twice: {joined[index]!r} and {address!r}."
                )
            joined[index] = address
    return joined
