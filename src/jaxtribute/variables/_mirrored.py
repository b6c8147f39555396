"""Variables whose copies are equal at all times."""

from __future__ import annotations

from typing import Any

import jax
from jax.core import Tracer

from .. import _context
from .._reduce import VariableAggregation, VariableSynchronization
from .._topology import Topology
from ..errors import UnimplementedError
from ..values import IndexedSlices, Mirrored, PerReplica
from . import _frames, _scatter
from ._base import Combine
from ._distributed import DistributedVariable
from ._spec import VariableSpec

__all__ = ["MirroredVariable"]


class MirroredVariable(DistributedVariable):
    """A variable with an equal copy on each replica.

    What replicas assign is combined by the variable's aggregation, so that the copies stay equal.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     v = jt.Variable(1.0, aggregation=jt.VariableAggregation.SUM)
    >>> _ = strategy.run(lambda: v.assign_add(jnp.ones(())))
    >>> v
    MirroredVariable:{
      0: <jt.Variable 'Variable:0' shape=() dtype=float32, numpy=3.0>,
      1: <jt.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=3.0>
    }
    """

    def __init__(self, spec: VariableSpec, strategy: Any, topology: Topology) -> None:
        super().__init__(spec, strategy, topology)
        self._synchronization = VariableSynchronization.ON_WRITE

    def _read(self, frame: _frames.Frame) -> jax.Array:
        value = frame.read(self)
        if frame.local or isinstance(value, Tracer):
            return value
        return self.topology.replica_of(value, 0)

    def as_value(self) -> Mirrored:
        frame = _frames.current()
        frame.touch(self.topology)
        return Mirrored(frame.read(self), self.topology)

    def as_per_replica(self) -> PerReplica:
        return self.as_value().as_per_replica()

    def _update_outside(self, combine: Combine, value: Any) -> None:
        if isinstance(value, PerReplica):
            raise ValueError(
                f"The copies of the mirrored variable {self.name!r} are equal at all times, and "
                f"cannot be assigned {value!r}, which differs between replicas. Combine it first, "
                "with strategy.reduce, or assign inside `run` to a variable created with an "
                "aggregation such as jt.VariableAggregation.MEAN."
            )
        if isinstance(value, Mirrored):
            value = value.component(0)
        self._write(combine, value)

    def _update_inside(
        self, context: _context.ReplicaContextLike, combine: Combine, value: Any
    ) -> None:
        if self.topology.num_replicas > 1:
            if self.aggregation is not VariableAggregation.NONE:
                value = context.aggregate(self.aggregation, value)
            elif not context.has_in_common(value):
                raise ValueError(
                    f"You must specify an aggregation method to update the mirrored variable "
                    f"{self.name!r} inside `run` with what each replica computes: without one its "
                    "copies would drift apart. Create it with "
                    "aggregation=jt.VariableAggregation.SUM, MEAN or ONLY_FIRST_REPLICA, or update "
                    "it with an optimizer, which adds up the replicas' gradients."
                )
        self._write(combine, value)

    def scatter_rows(self, kind: str, rows: IndexedSlices) -> Any:
        one_writer = (VariableAggregation.NONE, VariableAggregation.ONLY_FIRST_REPLICA)
        if kind in _scatter.NEEDS_ONE_WRITER and self.aggregation not in one_writer:
            raise UnimplementedError(
                f"scatter_{kind} on the mirrored variable {self.name!r} with aggregation "
                f"{self.aggregation.name} has no meaning: the rows of several replicas cannot be "
                "combined. Use ONLY_FIRST_REPLICA, or scatter_add, scatter_sub, scatter_mul or "
                "scatter_div."
            )
        return super().scatter_rows(kind, rows)

    def _place(self, data: jax.Array) -> jax.Array:
        return self.topology.replicate(data)

    def _whole(self) -> jax.Array:
        return self.topology.replica_of(self._data, 0)

    def component_data(self, index: int) -> jax.Array:
        return self.topology.replica_of(self._data, index)

    def join_components(self, components: list[jax.Array]) -> jax.Array:
        return self.topology.join_copies(components)
