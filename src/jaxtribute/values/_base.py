"""Values that differ, or are kept equal, between replicas."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .. import _tree

__all__ = ["DistributedValues"]


class DistributedValues(_tree.Leaf, ABC):
    """A value for each replica; see `PerReplica` and `Mirrored`.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> value = strategy.experimental_distribute_values_from_function(
    ...     lambda ctx: ctx.replica_id_in_sync_group
    ... )
    >>> isinstance(value, jt.DistributedValues), value.values
    (True, (0, 1))
    """

    @property
    @abstractmethod
    def values(self) -> tuple[Any, ...]:
        """The value of each local replica, in order."""

    def __repr__(self) -> str:
        return describe(type(self).__name__, self.values)


def describe(kind: str, values: tuple[Any, ...]) -> str:
    """Return the way a distributed value is printed."""
    lines = ",\n".join(f"  {index}: {value!r}" for index, value in enumerate(values))
    return f"{kind}:{{\n{lines}\n}}"
