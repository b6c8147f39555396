"""Replicas as one program that runs on all devices: the compiled way to `run`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context, _tree
from .._jax_compat import is_staging, trace_in_progress
from .._options import CommunicationOptions
from .._reduce import ReduceOp
from .._topology import PER_REPLICA, REPLICA_AXIS, REPLICATED, Topology
from .._wide import asarray, check_fits
from ..collectives import CrossDeviceOps
from ..collectives._gather import gather_in_step
from ..tracing._signature import RaggedValue, check_no_text
from ..values import Mirrored, PerReplica
from ..values._spmd import SpmdPerReplica
from ..variables import Variable, _frames
from ..variables._effects import Effect
from ..variables._sync_on_read import all_on
from ._exchange import nested_call_error
from ._replica_context import ReplicaContext


def run_spmd(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Run `fn` on each replica as part of the program that is being traced.

    Raises:
      RaggedValue: when a per-replica argument differs in shape or type between replicas.
    """
    outer = _frames.current()
    if outer.in_program or is_staging():
        return _run_lifted(strategy, fn, args, kwargs)
    # Inside somebody else's jax.grad or jax.vmap alone, replicas have to be given what they read.
    variables: list[Variable] = []
    while True:
        values = [(v, _placed(outer.read_for_replicas(v), strategy.topology, v)) for v in variables]
        frame = _Foreign(outer, values)
        with _frames.opened(frame):
            result = _run_lifted(strategy, fn, args, kwargs)
        if not frame.missing:
            break
        variables += frame.missing
    for variable, value in frame.written:
        outer.write(variable, value)
    outer.record(frame.effects)
    return result


class _Foreign(_frames.GradientFrame):
    """Variables that all devices have been given, for replicas that compute at once."""

    def __init__(self, parent: _frames.Frame, values: list[tuple[Variable, Any]]) -> None:
        super().__init__(parent, values)
        self.missing: list[Variable] = []

    def read_for_replicas(self, variable: Variable) -> Any:
        if id(variable) in self._values:
            return super().read_for_replicas(variable)
        self.missing.append(variable)
        # Right, but on one device; the replicas run again with what they have been given.
        return np.asarray(variable.share())


def _placed(value: Any, topology: Topology, variable: Variable) -> Any:
    """Bring what a gradient is taken by to all devices."""
    differs = variable.differs_between_replicas
    return jax.device_put(value, topology.stacked if differs else topology.replicated)


def _run_lifted(strategy: Any, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    topology: Topology = strategy.topology
    outer = _frames.current()
    outer.touch(topology)
    leaves, structure = _tree.flatten((args, kwargs))
    check_no_text(leaves, structure, fn)
    inputs = _Inputs(leaves, topology)
    # Replicas may capture all that is of the program's own trace and the same for each of them.
    given = {id(variable): variable for variable in outer.replaced()}
    if outer.in_program:
        given |= {id(variable): variable for variable in all_on(topology)}
    differing = [v for v in given.values() if v.differs_between_replicas]
    common = [v for v in given.values() if not v.differs_between_replicas]
    outside = trace_in_progress()
    results = _ReplicaResults()

    def on_device(
        rows: list[Any], whole: list[Any], differing_rows: list[Any], common_values: list[Any]
    ) -> tuple[list[Any], ...]:
        local_args, local_kwargs = structure.unflatten(inputs.put_together(rows, whole))
        variables = [
            *((v, row[0]) for v, row in zip(differing, differing_rows, strict=True)),
            *zip(common, common_values, strict=True),
        ]
        frame = _frames.SpmdFrame(outer, variables, outside)
        exchange = SpmdExchange(strategy, topology, whole)
        context = ReplicaContext(strategy, jax.lax.axis_index(REPLICA_AXIS), exchange)
        with _context.opened(_context.Side(strategy, context)), _frames.opened(frame):
            try:
                result = _tree.call_inside(fn, local_args, local_kwargs)
            except _frames.TraceAgain:  # with what variables start from, which has to get out
                result, results.is_cut_off = (), True
        results.effects = frame.effects
        outputs = results.take_apart(
            result, inputs.given(whole), exchange.merged, frame, exchange.sums
        )
        return *outputs, [effect.arrays for effect in frame.effects]

    program = topology.on_each_device(
        on_device,
        in_specs=(PER_REPLICA, REPLICATED, PER_REPLICA, REPLICATED),
        out_specs=(PER_REPLICA, REPLICATED, REPLICATED, PER_REPLICA, REPLICATED),
    )
    values = [[outer.read_for_replicas(v) for v in group] for group in (differing, common)]
    try:
        outputs, sums, common_written, differing_written, effects = program(
            inputs.rows, inputs.whole, *values
        )
    except ValueError as error:
        if "Context mesh" in str(error):
            error.add_note(_CAPTURED_ARRAY)
        raise
    results.store(outer, common_written, differing_written)
    if results.is_cut_off:
        outer.trace_again(at_once=True)
    outer.record([e.with_arrays(a) for e, a in zip(results.effects, effects, strict=True)])
    return results.put_together(outputs, sums, inputs, topology)


_CAPTURED_ARRAY = (
    "An array of the surrounding function was captured by the function given to `run` and indexed "
    "there, which JAX does not support. Pass it through the `args` of `run` instead."
)


class _Inputs:
    """The arguments of replicas, sorted into arrays that differ, whole arrays, and constants."""

    def __init__(self, leaves: list[Any], topology: Topology) -> None:
        self.rows: list[Any] = []
        self.whole: list[Any] = []
        self._originals: list[Any] = []  # of the whole arrays
        self._constants: list[Any] = []
        for leaf in leaves:
            if isinstance(leaf, PerReplica) and not leaf.is_constant:
                array = leaf.stacked(topology)
                if array is None:
                    raise RaggedValue
                self.rows.append(array)
                self._constants.append(_ROW)
            elif isinstance(leaf, (jax.Array, Mirrored)):
                array = leaf.component(None) if isinstance(leaf, Mirrored) else leaf
                self.whole.append(array if is_staging() else topology.replicate(array))
                self._originals.append(leaf)
                self._constants.append(_WHOLE)
            else:
                check_fits(leaf, "A replica")
                self._constants.append(leaf.components[0] if isinstance(leaf, PerReplica) else leaf)

    def put_together(self, rows: list[Any], whole: list[Any]) -> list[Any]:
        """Return what a replica is given for each leaf."""
        arrays = {_ROW: (row[0] for row in rows), _WHOLE: iter(whole)}
        return [
            next(arrays[leaf]) if leaf is _ROW or leaf is _WHOLE else leaf
            for leaf in self._constants
        ]

    def given(self, whole: list[Any]) -> dict[int, int]:
        """Return which whole array, by number, each of the replica's own stands for."""
        return {id(array): number for number, array in enumerate(whole)}

    def original(self, number: int) -> Any:
        """Return a whole array as it was passed to `run`."""
        return self._originals[number]


_ROW, _WHOLE = object(), object()


class _ReplicaResults:
    """Passes what replicas return and assign out of the program."""

    effects: list[Effect]
    is_cut_off = False

    def take_apart(
        self,
        result: Any,
        given: dict[int, int],
        merged: list[Any],
        frame: _frames.SpmdFrame,
        sums: dict[int, Any],
    ) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        leaves, self._structure = _tree.flatten(result)
        self._template: list[Any] = []
        outputs: list[Any] = []
        totals: list[Any] = []
        for leaf in leaves:
            if id(leaf) in given:
                self._template.append(_Given(given[id(leaf)]))
            elif any(leaf is one for one in merged):
                self._template.append(_COMMON)
                totals.append(leaf)
            elif isinstance(leaf, (Tracer, np.ndarray)):
                outputs.append(jnp.expand_dims(asarray(leaf, "The result of a replica"), 0))
                self._template.append(_SUMMED if id(leaf) in sums else _OUTPUT)
                if id(leaf) in sums:
                    totals.append(sums[id(leaf)])
            else:  # the same object for all replicas, which stays bare
                self._template.append(leaf)
        self._started = [v for v, _ in frame.started]
        self._written = [v for v, _ in frame.written]
        values = [*frame.started, *frame.written]
        return (
            outputs,
            totals,
            [value for v, value in values if not v.differs_between_replicas],
            [jnp.expand_dims(value, 0) for v, value in values if v.differs_between_replicas],
        )

    def store(self, frame: _frames.Frame, common: list[Any], differing: list[Any]) -> None:
        """Have a frame do what replicas have done to variables."""
        of_kind = {False: iter(common), True: iter(differing)}
        for variable in self._started:
            _frames.start(variable, next(of_kind[variable.differs_between_replicas]))
        for variable in self._written:
            frame.write(variable, next(of_kind[variable.differs_between_replicas]))

    def put_together(
        self, outputs: list[Any], sums: list[Any], inputs: _Inputs, topology: Topology
    ) -> Any:
        remaining, totals = iter(outputs), iter(sums)

        def rebuild(leaf: Any) -> Any:
            if isinstance(leaf, _Given):
                return inputs.original(leaf.number)
            if leaf is _COMMON:
                return next(totals)
            if leaf is not _OUTPUT and leaf is not _SUMMED:
                return leaf
            array = next(remaining)
            total = next(totals) if leaf is _SUMMED else None
            if topology.num_replicas == 1:
                return array[0]
            return PerReplica.from_stacked(array, topology, total)

        return self._structure.unflatten([rebuild(leaf) for leaf in self._template])


class _Given(NamedTuple):
    """A result that is one of the arguments, the same for all replicas."""

    number: int


_OUTPUT, _SUMMED, _COMMON = object(), object(), object()


class SpmdExchange:
    """Deals with the other replicas through XLA's collectives."""

    def __init__(self, strategy: Any, topology: Topology, common: Sequence[Any]) -> None:
        self._strategy = strategy
        self._topology = topology
        self._common = common  # arrays known to be the same for all replicas
        self.merged: list[Any] = []  # what merge calls returned, which is as well
        self._expected: list[Any] = []
        self._kept: list[Any] = []
        self.sums: dict[int, Any] = {}  # of scalars that were added up along the way, by identity

    def all_reduce(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        arrays = [asarray(value, "all_reduce") for value in values]
        ops: CrossDeviceOps = self._strategy.cross_device_ops.with_options(options)
        _frames.current().limit(ops.timeout)
        along: list[Any] = []
        if op is ReduceOp.SUM and _frames.current().here:
            along, self._expected = self._expected, []
        totals = ops.all_reduce_in_step(op, [*arrays, *along], self._topology.num_replicas)
        sums = totals[len(arrays) :]
        self.sums.update({id(value): total for value, total in zip(along, sums, strict=True)})
        self._kept += along  # so that no other value gets their identity
        return totals[: len(arrays)]

    def expect_sum(self, value: Any) -> None:
        if isinstance(value, Tracer) and _frames.current().here:
            self._expected.append(value)

    def all_gather(self, value: Any, axis: int) -> Any:
        return gather_in_step(value, axis)

    def sizes(self, size: int) -> tuple[int, ...] | None:
        return (size,) * self._topology.num_replicas  # one program has one shape

    def from_first(self, value: Any) -> Any:
        if self.common(value):
            return value
        return jax.tree.map(lambda leaf: jax.lax.all_gather(leaf, REPLICA_AXIS)[0], value)

    def common(self, value: Any) -> bool:
        return all(
            not isinstance(leaf, Tracer)
            or any(leaf is common for common in (*self._common, *self.merged))
            for leaf in jax.tree.leaves(value)
        )

    def merge_call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        if not _frames.current().here:
            raise nested_call_error("merge_call")

        def wrap(leaf: Any) -> Any:
            if isinstance(leaf, Tracer) and not self.common(leaf):
                return SpmdPerReplica(leaf, self._topology)
            return leaf

        def unwrap(leaf: Any) -> Any:
            if isinstance(leaf, SpmdPerReplica):
                return leaf.local
            if isinstance(leaf, Mirrored):
                return leaf.component(None)
            if isinstance(leaf, Tracer):
                self.merged.append(leaf)
            return leaf

        merged_args, merged_kwargs = _tree.map_leaves(wrap, (args, kwargs))
        with _context.opened(_context.Side(self._strategy)):
            result = fn(self._strategy, *merged_args, **merged_kwargs)
        return _tree.map_leaves(unwrap, result)
