"""One compiled program: a function for one kind of arguments, with its variables lifted.

JAX programs have no variables. The function is traced once. What it turns out to use, variables,
elements of datasets and rows of tables, becomes an input of the program, and what it assigns an
output. Only then is it known which inputs may be overwritten and on which devices the program runs,
so what JAX compiles is made of the trace.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import _tree, config
from .._interrupts import postponed
from .._jax_compat import TracedProgram, calls_back, has_collectives, runs_without_python
from .._topology import Topology
from .._wide import asarray
from ..errors import FailedPreconditionError
from ..values import Mirrored, PerReplica
from ..variables import Variable, _frames
from ..variables._storage import STORAGE_LOCK, next_serial, overwrite
from ..variables._trace_caches import outside_frames
from ._callbacks import Guard
from ._feeding import Reading, supplied
from ._lookups import Lookups
from ._signature import Call, RaggedValue, sort_arguments


class Outdated(Exception):
    """JAX would trace a program again, as its configuration has changed since."""


class Given(NamedTuple):
    """What a program gets besides the variables it overwrites."""

    read: list[Any]
    elsewhere: list[Any]
    """The values of variables on parameter servers."""
    inputs: list[Any]
    rows: Sequence[Any] = ()
    """Of tables on parameter servers, one array for each lookup."""


@dataclass(frozen=True)
class _Element:
    """An input of the program that is part of an element of a dataset."""

    index: int  # among the inputs of the call


class Program:
    """A function for one kind of arguments.

    Args:
      name: how it is called in messages.
      fn: the function.
      call: the arguments.
    """

    def __init__(self, name: str, fn: Callable[..., Any], call: Call) -> None:
        self._name = name
        self._fn = fn
        # The arrays of the call that was traced are not needed again and must not be kept alive.
        self._call = replace(call, inputs=[], feeders=[])
        self._num_arguments = self._num_inputs = len(call.inputs)
        self._results = _Results()
        self._meets_workers = False
        self._has_run = False
        self._guard: Guard | None = None
        self.starts_variables = False
        self.readings: list[Reading] = []  # what was read of datasets, besides what was fed
        self.elements_used = 0
        self._frame: _frames.LiftingFrame
        self._topology: Topology | None

    # --- Tracing ---------------------------------------------------------------------------

    def trace(self, inputs: list[Any]) -> bool:
        """Trace the function, for inputs like these.

        Returns:
          False if it has to be traced again: replicas use variables that came into being meanwhile
          and of which each should be given its part; or it creates variables from values that it
          computes, and the program is to do nothing but compute these (see `starts_variables`).

        Raises:
          ValueError: when it creates variables that nobody keeps.
        """
        before = next_serial()
        with outside_frames():
            types = map(_type_of, inputs)
            closed, outputs = jax.make_jaxpr(self._traced, return_shape=True)(*types)
        frame = self._frame
        del self._frame
        if frame.is_preliminary and not frame.started:
            return False
        self.starts_variables = bool(frame.started)
        self._outputs = jax.tree.structure(outputs[:-1])
        self._effects = frame.effects
        self._time_limit = frame.time_limit
        if calls_back(closed) and self._may_guard():
            self._guard = Guard(self._name, self._topology)
            closed = self._guard.guarded(closed)
        self._program: TracedProgram | None = TracedProgram(closed, self._only_started(frame))
        self._written = [variable for variable, _ in frame.started or frame.written]
        self._sort(self._program, frame.sources)
        self._jitted = jax.jit(
            self._pure,
            donate_argnums=0 if self._guard is None else (),
            **({} if self._topology is None else {"out_shardings": self._out_shardings()}),
        )
        del frame
        self._check_kept(before)
        return not self.starts_variables

    def _only_started(self, frame: _frames.LiftingFrame) -> int | None:
        """Have the program only compute what variables start from, if any do."""
        if not frame.started:
            return None
        self._effects = []
        plain, stacked = self._results.take_apart((), None)
        self._outputs = jax.tree.structure((plain, stacked, [0] * len(frame.started), []))
        return len(frame.started)

    def _may_guard(self) -> bool:
        # Workers would have to meet after each step, which is worth it to those who ask for checks.
        apart = self._topology is None or not self._topology.spans_workers
        return apart or config.functions_check_ids()

    def _traced(self, *inputs: Any) -> tuple[list[Any], ...]:
        frame = self._frame = _frames.LiftingFrame()
        args, kwargs, *fed = self._call.structure.unflatten(self._call.leaves(list(inputs)))
        with supplied(fed, self._lifted) as supply, _frames.opened(frame):
            result = frame.as_far_as_possible(lambda: _tree.call_inside(self._fn, args, kwargs))
        self.readings = supply.readings
        self.elements_used = supply.used + len(supply.readings)
        self._topology = self._only_topology(frame)
        plain, stacked = self._results.take_apart(result, self._topology)
        updated = [value for _, value in frame.written]
        effects = [effect.arrays for effect in frame.effects]
        return plain, stacked, updated, effects, [value for _, value in frame.started]

    def _lifted(self, elements: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return what was read of a dataset while tracing, with inputs for the arrays in it."""
        leaves, structure = _tree.flatten(elements)
        call = sort_arguments(leaves, structure, None)
        if call.topology is not None:
            self._frame.touch(call.topology)
        tracers: list[Any] = []
        for value in call.inputs:
            array = jnp.asarray(value) if isinstance(value, np.generic) else value
            dtype = jax.dtypes.canonicalize_dtype(array.dtype)
            source = _Element(self._num_inputs)
            tracers.append(self._frame.new_input(source, array.shape, dtype))
            self._num_inputs += 1
        return structure.unflatten(call.leaves(tracers))

    def _only_topology(self, frame: _frames.LiftingFrame) -> Topology | None:
        topologies = list(frame.topologies.values())
        if len(topologies) > 1:
            raise RuntimeError(
                "A jt.function can use one strategy only, and this one used the devices of "
                f"{len(topologies)}. Write a function for each."
            )
        return topologies[0] if topologies else self._call.topology

    def _sort(self, program: TracedProgram, sources: Sequence[Any]) -> None:
        """Sort the inputs that turned up by where they come from."""
        assigned = {id(variable) for variable in self._written}
        overwritten: dict[int, Variable] = {}
        read: dict[int, Variable] = {}
        remote: dict[int, Variable] = {}
        elements: dict[int, _Element] = {}
        tables: dict[int, Any] = {}
        for number in program.numbers:
            source = sources[number]
            if isinstance(source, _frames.Rows):
                tables[number] = source.table
            elif isinstance(source, _Element):
                elements[number] = source
            elif source.is_remote:
                remote[number] = source
            elif id(source) in assigned:
                overwritten[number] = source
            else:
                read[number] = source
        self._overwritten = list(overwritten.values())
        self._read = list(read.values())
        self._remote = list(remote.values())
        self._elements = [element.index for element in elements.values()]
        self._foreign = any(
            v.topology is not self._topology for v in [*self._overwritten, *self._read]
        )
        others = [*overwritten, *read, *remote, *elements]
        self._numbers = [*others, *tables]
        self._lookups = Lookups(program, tables, others) if tables else None

    def _check_kept(self, before: int) -> None:
        """Refuse variables that were created while tracing and that only the program holds."""
        held: list[list[Any]] = [self._overwritten, self._read, self._written]
        created = {
            id(v): weakref.ref(v) for variables in held for v in variables if v.serial > before
        }
        if not created:
            return
        for variables in held:
            variables[:] = [created.get(id(v), v) for v in variables]
        if any(reference() is None for reference in created.values()):
            raise ValueError(
                f"{self._name!r} creates new variables each time it is traced. A jt.function may "
                "create variables on its first call only, and has to keep them: create them "
                "outside of it, or `if not created`, in an attribute of an object."
            )
        for variables in held:
            variables[:] = [v() if isinstance(v, weakref.ref) else v for v in variables]

    def _pure(self, overwritten: list[Any], given: Given) -> Any:
        program, self._program = self._program, None
        if program is None:
            raise Outdated
        turned_up, inputs = self._in_order(overwritten, given)
        outputs = program.function(self._numbers)(*turned_up, *given.rows, *inputs)
        return jax.tree.unflatten(self._outputs, outputs)

    def _in_order(self, overwritten: list[Any], given: Given) -> tuple[list[Any], list[Any]]:
        """Return the inputs that turned up, but looked-up rows, and those of the call."""
        elements = [given.inputs[index] for index in self._elements]
        return [*overwritten, *given.read, *given.elsewhere, *elements], given.inputs[
            : self._num_arguments
        ]

    def _out_shardings(self) -> Any:
        assert self._topology is not None
        replicated, stacked = self._topology.replicated, self._topology.stacked
        variables = [
            stacked if variable.differs_between_replicas else replicated
            for variable in self._written
        ]
        return replicated, stacked, variables, replicated

    # --- Compiling and running -------------------------------------------------------------

    def compile(self, inputs: list[Any]) -> None:
        """Compile, for inputs like these."""
        elsewhere = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self._remote]
        with STORAGE_LOCK:  # in which no step of another thread is overwriting them
            overwritten = [variable.load() for variable in self._overwritten]
            overwritten, given = self._placed(overwritten, elsewhere, inputs)
        if self._lookups is not None:
            given = given._replace(rows=self._lookups.types)
        with outside_frames():
            compiled = self._jitted.lower(overwritten, given).compile()
        if self._topology is not None and self._topology.spans_workers:
            self._meets_workers = has_collectives(compiled)

    def __call__(self, inputs: list[Any], readings: list[Reading]) -> Any:
        """Run, updating the variables.

        Args:
          inputs: the arrays among the arguments.
          readings: what was read for this run; empty once the program has run, or failed, with it.
        """
        if not self._meets_workers or self._guard is not None:
            return self._execute(inputs, readings)[1]
        return self._among_workers(self._execute, inputs, readings)[1]

    def _among_workers(self, run: Callable[..., Any], *args: Any) -> Any:
        assert self._topology is not None
        return self._topology.carry_out(run, *args, what=self._name, timeout=self._time_limit)

    def _execute(self, inputs: list[Any], readings: list[Reading]) -> tuple[Any, Any]:
        """Start the program, and return its outputs as they are, and as the function's results."""
        frame = _frames.current()
        elsewhere = frame.read_all(self._remote)  # which takes time, so not under the lock
        rows: Sequence[Any] = ()
        if self._lookups is not None:
            overwritten = [variable.load() for variable in self._overwritten]
            turned_up, own = self._in_order(*self._placed(overwritten, elsewhere, inputs))
            with outside_frames():
                rows = self._lookups.fetch(frame, turned_up, own)

        def store(outputs: Any) -> None:
            readings.clear()
            for variable, data in zip(self._written, outputs[2], strict=True):
                if self.starts_variables:
                    if variable.has_no_value_yet:  # also not that of a checkpoint
                        variable.store_foreign(data)
                elif variable.topology is not self._topology:
                    variable.store_foreign(data)
                else:
                    variable.store_output(data)

        with STORAGE_LOCK, outside_frames():
            overwritten = [variable.take_over() for variable in self._overwritten]
            overwritten, given = self._placed(overwritten, elsewhere, inputs)
            given = given._replace(rows=rows)
            # JAX runs a program for the first time from Python, where it can be interrupted.
            with nullcontext() if self._has_run else postponed():
                try:
                    outputs = overwrite(self._run, (overwritten, given), store)
                except Outdated:
                    raise
                except Exception:
                    readings.clear()  # it has failed with them, and would again
                    raise
            plain, stacked, updated, effects = outputs
            self._has_run = self._guard is not None or runs_without_python(self._jitted)
        if self._effects:
            frame.record(
                [e.with_arrays(arrays) for e, arrays in zip(self._effects, effects, strict=True)]
            )
        return (updated, plain, stacked), self._results.put_together(plain, stacked)

    @property
    def _run(self) -> Callable[..., Any]:
        return self._jitted if self._guard is None else self._run_guarded

    def _run_guarded(self, *args: Any) -> Any:
        assert self._guard is not None
        if self._meets_workers:
            outputs = self._among_workers(self._guard.carry_out, self._jitted, *args)
        else:
            outputs = self._guard.carry_out(self._jitted, *args)
        self._guard.check(self._meets_workers)
        return outputs

    def meet_workers(self) -> None:
        """Wait until all workers have compiled the program, if it is one they run together.

        Compiling takes longer on one than on another, and collectives wait for nobody that long.

        Raises:
          FailedPreconditionError: when others have compiled something else.
        """
        topology, name = self._topology, self._name
        if not self._meets_workers or topology is None:
            return
        others = topology.group.agree("compiling a function", name)
        different = [i for i, other in enumerate(others) if other != name]
        if different:
            found = ", ".join(f"{topology.group.tasks[i]} {others[i]!r}" for i in different)
            raise FailedPreconditionError(
                f"This worker has compiled the function {name!r}, {found}. All workers have to run "
                "the same functions in the same order."
            )

    def _placed(
        self, overwritten: list[Any], elsewhere: list[Any], inputs: list[Any]
    ) -> tuple[list[Any], Given]:
        """Return the arguments of the program but looked-up rows, where it expects them."""
        read = [variable.load() for variable in self._read]
        topology = self._topology
        if topology is not None:
            inputs = [_on_devices(value, topology) for value in inputs]
            if self._foreign:
                overwritten = [_on_devices(value, topology) for value in overwritten]
                read = [_on_devices(value, topology) for value in read]
        elif overwritten or read:
            inputs = [_beside(value, (overwritten or read)[0]) for value in inputs]
        return overwritten, Given(read, elsewhere, inputs)


class _Results:
    """Passes the results of a traced function out of it, the arrays among them through JAX."""

    def take_apart(self, result: Any, topology: Topology | None) -> tuple[list[Any], list[Any]]:
        leaves, self._structure = _tree.flatten(result)
        plain: list[Any] = []
        stacked: list[Any] = []
        self._rebuild: list[_Rebuild] = []
        for leaf in leaves:
            if isinstance(leaf, PerReplica) and leaf.is_traced:
                array = None if topology is None else leaf.stacked(topology)
                if topology is None or array is None:  # made by hand, or of different shapes
                    raise RaggedValue
                stacked.append(array)
                self._rebuild.append(_per_replica(topology))
            elif isinstance(leaf, Mirrored):
                plain.append(leaf.component(None))
                self._rebuild.append(_mirrored(leaf.topology))
            elif isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
                plain.append(asarray(leaf, "The result of a jt.function"))
                self._rebuild.append(_plain if topology is None else _first_copy)
            else:
                self._rebuild.append(_constant(leaf))
        return plain, stacked

    def put_together(self, plain: list[Any], stacked: list[Any]) -> Any:
        arrays, rows = iter(plain), iter(stacked)
        return self._structure.unflatten([rebuild(arrays, rows) for rebuild in self._rebuild])


_Rebuild = Callable[[Iterator[Any], Iterator[Any]], Any]  # (plain arrays, stacked ones) -> leaf


def _plain(arrays: Iterator[Any], rows: Iterator[Any]) -> Any:
    return next(arrays)


def _first_copy(arrays: Iterator[Any], rows: Iterator[Any]) -> Any:
    return next(arrays).addressable_data(0)


def _mirrored(topology: Topology) -> _Rebuild:
    return lambda arrays, rows: Mirrored(_on_devices(next(arrays), topology), topology)


def _per_replica(topology: Topology) -> _Rebuild:
    return lambda arrays, rows: PerReplica.from_stacked(next(rows), topology)


def _constant(value: Any) -> _Rebuild:
    return lambda arrays, rows: value


def _type_of(value: Any) -> Any:
    """Return what is known of an input when a program is traced: not where it is."""
    if not isinstance(value, jax.Array):
        return value
    weak_type = getattr(value, "weak_type", False)  # random keys have none
    return jax.ShapeDtypeStruct(value.shape, value.dtype, weak_type=weak_type)


def _on_devices(value: Any, topology: Topology) -> Any:
    """Bring an array to the devices of the program, where JAX would find it elsewhere.

    Also one that JAX would bring there itself: it would trace again when the next is there already.
    """
    if topology.spans_workers and not isinstance(value, jax.Array):
        return topology.replicate(value)
    if isinstance(value, jax.Array) and value.sharding.device_set != topology.device_set:
        return topology.replicate(value)
    return value


def _beside(value: Any, variable: jax.Array) -> Any:
    """Bring an array that was placed elsewhere to the device of the variables."""
    if isinstance(value, jax.Array) and value.committed and value.devices() != variable.devices():
        return jax.device_put(value, variable.sharding)
    return value
