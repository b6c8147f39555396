"""Variables of which each replica has a value of its own."""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .. import _context
from .._jax_compat import is_tracing
from .._reduce import VariableAggregation
from .._topology import REPLICA_AXIS, Topology
from ..errors import UnimplementedError
from ..values import Mirrored, PerReplica
from ..values._spmd import SpmdPerReplica
from . import _frames
from ._base import Combine, replace
from ._convert import matching
from ._distributed import DistributedVariable
from ._spec import VariableSpec
from ._storage import LostValueError, Stored

__all__ = ["SyncOnReadVariable"]


class SyncOnReadVariable(DistributedVariable):
    """A variable that replicas write without communication, combined when read outside of them.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     v = jt.Variable(
    ...         0.0,
    ...         synchronization=jt.VariableSynchronization.ON_READ,
    ...         aggregation=jt.VariableAggregation.SUM,
    ...     )
    >>> _ = strategy.run(lambda: v.assign(jt.get_replica_context().replica_id_in_sync_group + 1))
    >>> v.numpy().item()
    3.0
    """

    differs_between_replicas = True

    def __init__(self, spec: VariableSpec, strategy: Any, topology: Topology) -> None:
        super().__init__(spec, strategy, topology)
        _all[self.serial] = self

    def copy_storage(self, other: Stored) -> None:
        super().copy_storage(other)
        _all[self.serial] = self

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return (self.topology.num_replicas, *self.shape)

    def _read(self, frame: _frames.Frame) -> jax.Array:
        value = frame.read(self)
        if _context.get_replica_context() is not None or frame.combined:
            return value
        if frame is _frames.STORAGE and isinstance(value, Tracer):
            return value  # combined already, see `_whole`
        if self.aggregation is VariableAggregation.NONE:
            raise ValueError(
                f"The variable {self.name!r} cannot be read outside of the replicas: it has "
                "synchronization ON_READ and VariableAggregation.NONE, which does not say how the "
                "replicas' values are to be combined. Create it with SUM, MEAN or "
                "ONLY_FIRST_REPLICA, or read its copies: strategy.experimental_local_results(v)."
            )
        if frame.local:
            return _aggregate_rows(self.aggregation, jax.lax.all_gather(value, REPLICA_AXIS))
        if isinstance(value, Tracer):
            return _aggregate_rows(self.aggregation, value)
        return self._combined(value)

    def as_value(self) -> PerReplica:
        return PerReplica(
            [self.read_component(i) for i in range(self.topology.num_local)], self.topology
        )

    def as_per_replica(self) -> PerReplica:
        frame = _frames.current()
        frame.touch(self.topology)
        if frame.combined:
            raise UnimplementedError(
                f"The copies of the variable {self.name!r} cannot be told apart in a program that "
                "is saved, which has one value of it. Save what one replica does."
            )
        in_storage = frame is _frames.STORAGE
        value = frame.read_for_replicas(self) if in_storage else frame.read(self)
        if frame.local:
            return SpmdPerReplica(value, self.topology)
        return PerReplica.from_stacked(value, self.topology)

    def _combined(self, rows: jax.Array) -> jax.Array:
        program = _aggregation_program(self.aggregation, self.topology)
        total = self.topology.carry_out(program, rows, what=f"reading the variable {self.name!r}")
        return self.topology.replica_of(total, 0)

    def _whole(self) -> jax.Array:
        return self._combined(self._data)

    def _update_inside(
        self, context: _context.ReplicaContextLike, combine: Combine, value: Any
    ) -> None:
        self._write(combine, value)

    def _update_outside(self, combine: Combine, value: Any) -> None:
        if isinstance(value, PerReplica):
            raise ValueError(
                f"The variable {self.name!r} cannot be assigned {value!r} outside of the replicas. "
                "Pass that value to `run` and assign inside."
            )
        if isinstance(value, Mirrored):
            value = value.component(0)
        frame = _frames.current()
        if frame.combined:
            self._write(combine, value)
            return
        self._check_can_change(combine)
        try:
            old = frame.read(self)
        except LostValueError:
            if combine is not replace:
                raise
            old = self.blank()
        value = matching(self, value)
        if frame is not _frames.STORAGE or is_tracing():
            count = self.topology.num_replicas
            frame.write(self, _changed(self.aggregation, combine, count, frame.local, old, value))
            return
        # One program on all devices: arrays of other workers cannot be computed with otherwise.
        program = _change_program(self.aggregation, combine, self.topology)
        frame.write(self, program(old, self.topology.replicate(value)))

    def deal_out(self) -> None:
        """Have the whole be what each replica was given, right after the variable was made."""
        with jax.ensure_compile_time_eval():
            program = _change_program(self.aggregation, replace, self.topology)
            value = self.topology.replicate(self.component_data(0))
            self.store_output(program(self._data, value))

    def _check_can_change(self, combine: Combine) -> None:
        by_difference = combine is not replace
        if self.aggregation is VariableAggregation.NONE or (
            self.aggregation is VariableAggregation.SUM and by_difference
        ):
            raise ValueError(
                f"The variable {self.name!r} has synchronization ON_READ and aggregation "
                f"{self.aggregation.name}, and cannot be changed in this way outside of the "
                "replicas: it is not said which of them is to change by how much. Use `assign` "
                "with SUM, MEAN or ONLY_FIRST_REPLICA, or change it inside `run`."
            )

    def _scatter(self, kind: str, sparse_delta: Any) -> Any:
        raise UnimplementedError(
            f"scatter_{kind} is not available on the variable {self.name!r}, whose synchronization "
            "is ON_READ. Read it, change the rows with .at[...], and assign the result."
        )

    def scatter_rows(self, kind: str, rows: Any) -> Any:
        return self._scatter(kind, rows)

    def _place(self, data: jax.Array) -> jax.Array:
        if data.shape == self.stored_shape:
            if self.topology.spans_workers:
                return data  # made by a program, which left it in place
            return jax.device_put(data, self.topology.stacked)
        return self.topology.stack([data] * self.topology.num_local)

    def component_data(self, index: int) -> jax.Array:
        return self.topology.row(self._data, index)

    def join_components(self, components: list[jax.Array]) -> jax.Array:
        return self.topology.stack(components)


_all: weakref.WeakValueDictionary[int, SyncOnReadVariable] = weakref.WeakValueDictionary()


def all_on(topology: Topology) -> list[SyncOnReadVariable]:
    """Return the variables there are that differ between the replicas of a topology."""
    living = sorted(_all.items())  # by their serial numbers
    return [variable for _, variable in living if variable.topology is topology]


def _changed(
    aggregation: VariableAggregation,
    combine: Combine,
    count: int,
    local: bool,
    old: Any,
    value: Any,
) -> Any:
    """Return the values of all replicas, or of the running one, after an update of the whole."""
    if aggregation is VariableAggregation.SUM:
        value = _dealt_out(count, local, value)
    return jnp.broadcast_to(combine(old, value), old.shape).astype(old.dtype)


def _dealt_out(count: int, local: bool, value: Any) -> Any:
    """Return what each replica has to be given for the sum to be `value`."""
    if jnp.issubdtype(value.dtype, jnp.inexact):
        return value / count
    # Whole numbers are dealt out, so that their sum is what was assigned.
    replica_ids = (
        jax.lax.axis_index(REPLICA_AXIS)
        if local
        else jnp.arange(count).reshape((count,) + (1,) * value.ndim)
    )
    return value // count + (replica_ids < value % count).astype(value.dtype)


@lru_cache(maxsize=64)
def _change_program(aggregation: VariableAggregation, combine: Combine, topology: Topology) -> Any:
    return jax.jit(
        lambda old, value: _changed(aggregation, combine, topology.num_replicas, False, old, value),
        out_shardings=topology.stacked,
    )


def _aggregate_rows(aggregation: VariableAggregation, rows: jax.Array) -> jax.Array:
    if aggregation is VariableAggregation.SUM:
        return jnp.sum(rows, axis=0, dtype=rows.dtype)
    if aggregation is VariableAggregation.MEAN:
        return jnp.mean(rows, axis=0)
    return rows[0]


@lru_cache(maxsize=64)
def _aggregation_program(aggregation: VariableAggregation, topology: Topology) -> Any:
    return jax.jit(
        lambda rows: _aggregate_rows(aggregation, rows), out_shardings=topology.replicated
    )
