"""Values that differ, or are kept equal, between replicas."""

from __future__ import annotations

from typing import Any

from .. import _tree

__all__ = ["DistributedValues"]


class DistributedValues(_tree.Leaf):
    """A value for each replica; see `PerReplica` and `Mirrored`."""

    @property
    def values(self) -> tuple[Any, ...]:
        """The value of each local replica, in order."""
        raise NotImplementedError  # every subclass has it

    def __repr__(self) -> str:
        return describe(type(self).__name__, self.values)


def describe(kind: str, values: tuple[Any, ...]) -> str:
    """Return the way a distributed value is printed."""
    lines = ",\n".join(f"  {index}: {value!r}" for index, value in enumerate(values))
    return f"{kind}:{{\n{lines}\n}}"
