"""What a compiled step knows of a per-replica value: the part on the device it runs on."""

from __future__ import annotations

from typing import Any

import jax

from .._topology import REPLICA_AXIS, Topology
from ._per_replica import PerReplica


class SpmdPerReplica(PerReplica):
    """A per-replica value seen by `merge_call` inside a compiled step.

    The program is the same on all devices, so it holds one tracer that stands for all parts.
    """

    def __init__(self, local: Any, topology: Topology) -> None:
        self.local = local
        self.topology = topology
        self.total = None

    @property
    def components(self) -> tuple[Any, ...]:
        """The value of each replica, brought to all of them."""
        rows = jax.lax.all_gather(self.local, REPLICA_AXIS)
        return tuple(rows[i] for i in range(self.topology.num_replicas))

    @property
    def is_traced(self) -> bool:
        return True

    @property
    def is_constant(self) -> bool:
        return False

    def stacked(self, topology: Topology) -> Any:
        return jax.lax.all_gather(self.local, REPLICA_AXIS)

    def component(self, replica_id: Any, topology: Topology | None) -> Any:
        return self.local

    def __repr__(self) -> str:
        return f"PerReplica({self.local!r} of each replica)"
