"""Replicas as one program that runs on all devices: the compiled way to `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context, _tree
from .._reduce import ReduceOp
from .._topology import PER_REPLICA, REPLICA_AXIS, REPLICATED, Topology
from ..collectives import CrossDeviceOps
from ..collectives._gather import gather_in_step
from ..tracing._signature import RaggedValue
from ..values import Mirrored, PerReplica
from ..values._regroup import is_distributed
from ..values._spmd import SpmdPerReplica
from ..variables import Variable, _frames
from ._replica_context import ReplicaContext


def run_spmd(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run `fn` on each replica as part of the program that is being traced.

    Raises:
      RaggedValue: when a per-replica argument differs in shape or type between replicas.
    """
    outer = _frames.current()
    if outer.lifts:
        return _run_lifted(strategy, fn, args, kwargs)
    # Inside somebody else's jax.jit or jax.grad: what a replica reads has to be read out here.
    variables: list[Variable] = []
    while True:
        frame = _frames.LiftingFrame(outer, [(v, outer.read(v)) for v in variables])
        with _frames.opened(frame):
            result = _run_lifted(strategy, fn, args, kwargs)
        if not frame.missing:
            break
        variables += frame.missing
    for variable, value in frame.written:
        outer.write(variable, value)
    return result


def _run_lifted(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    topology: Topology = strategy.topology
    outer = _frames.current()
    outer.touch(topology)
    leaves, structure = _tree.flatten((args, kwargs), is_distributed)
    rows = [_rows(leaf, topology) for leaf in leaves if _varies(leaf)]
    variables = outer.per_replica_variables()
    results = _ReplicaResults()

    def on_device(rows: list[Any], variable_rows: list[Any]) -> tuple[list[Any], Any, Any]:
        remaining = iter(rows)
        local = [next(remaining)[0] if _varies(leaf) else _constant(leaf) for leaf in leaves]
        local_args, local_kwargs = structure.unflatten(local)
        frame = _frames.SpmdFrame(
            outer,
            [(v, row[0]) for v, row in zip(variables, variable_rows, strict=True)],
        )
        context = ReplicaContext(
            strategy, jax.lax.axis_index(REPLICA_AXIS), SpmdExchange(strategy, topology)
        )
        side = _context.Side(strategy, context)
        with _context.opened(side), _frames.opened(frame):
            result = fn(*local_args, **local_kwargs)
        return results.take_apart(result, leaves, frame.written)

    program = topology.on_each_device(
        on_device,
        in_specs=(PER_REPLICA, PER_REPLICA),
        out_specs=(PER_REPLICA, REPLICATED, PER_REPLICA),
    )
    outputs, common, differing = program(rows, [outer.read(v) for v in variables])
    for variable, value in zip(results.common, common, strict=True):
        outer.write(variable, value)
    for variable, value in zip(results.differing, differing, strict=True):
        outer.write(variable, value)
    return results.put_together(outputs, topology)


def _varies(leaf: Any) -> bool:
    return isinstance(leaf, PerReplica) and not leaf.is_constant


def _rows(leaf: PerReplica, topology: Topology) -> Any:
    array = leaf.stacked(topology)
    if array is None:
        raise RaggedValue
    return array


def _constant(leaf: Any) -> Any:
    if isinstance(leaf, PerReplica):
        return leaf.values[0]
    return leaf.component(None) if isinstance(leaf, Mirrored) else leaf


class _ReplicaResults:
    """Passes what replicas return and assign out of the program."""

    def take_apart(
        self, result: Any, arguments: list[Any], written: list[tuple[Any, Any]]
    ) -> tuple[list[Any], list[Any], list[Any]]:
        leaves, self._structure = _tree.flatten(result, is_distributed)
        given = {id(argument) for argument in arguments}
        self._template: list[Any] = []
        outputs: list[Any] = []
        for leaf in leaves:
            if id(leaf) not in given and isinstance(leaf, (Tracer, np.ndarray)):
                outputs.append(jnp.expand_dims(leaf, 0))
                self._template.append(_OUTPUT)
            else:  # the same object for all replicas, which stays bare
                self._template.append(leaf)
        self.common = [v for v, _ in written if not v.differs_between_replicas]
        self.differing = [v for v, _ in written if v.differs_between_replicas]
        return (
            outputs,
            [value for v, value in written if not v.differs_between_replicas],
            [jnp.expand_dims(value, 0) for v, value in written if v.differs_between_replicas],
        )

    def put_together(self, outputs: list[Any], topology: Topology) -> Any:
        remaining = iter(outputs)

        def rebuild(leaf: Any) -> Any:
            if leaf is not _OUTPUT:
                return leaf
            array = next(remaining)
            if topology.num_replicas == 1:
                return array[0]
            return PerReplica.from_stacked(array, topology)

        return self._structure.unflatten([rebuild(leaf) for leaf in self._template])


_OUTPUT = object()


class SpmdExchange:
    """Deals with the other replicas through XLA's collectives."""

    def __init__(self, strategy: Any, topology: Topology) -> None:
        self._strategy = strategy
        self._topology = topology

    @property
    def _ops(self) -> CrossDeviceOps:
        return self._strategy.cross_device_ops

    def all_reduce(self, op: ReduceOp, values: Sequence[Any]) -> list[Any]:
        arrays = [jnp.asarray(value) for value in values]
        return self._ops.all_reduce_in_step(op, arrays, self._topology.num_replicas)

    def all_gather(self, value: Any, axis: int) -> Any:
        return gather_in_step(value, axis)

    def from_first(self, value: Any) -> Any:
        if self.common(value):
            return value
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, REPLICA_AXIS)[0], value)

    def common(self, value: Any) -> bool:
        leaves = jax.tree.leaves(value)
        return not any(isinstance(leaf, Tracer) for leaf in leaves)

    def merge_call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        def wrap(leaf: Any) -> Any:
            if isinstance(leaf, Tracer):
                return SpmdPerReplica(leaf, self._topology)
            return leaf

        def unwrap(leaf: Any) -> Any:
            if isinstance(leaf, SpmdPerReplica):
                return leaf.local
            return leaf.component(None) if isinstance(leaf, Mirrored) else leaf

        merged_args, merged_kwargs = _tree.map_leaves(wrap, (args, kwargs), is_distributed)
        with _context.opened(_context.Side(self._strategy)):
            result = fn(self._strategy, *merged_args, **merged_kwargs)
        return _tree.map_leaves(unwrap, result, is_distributed)
