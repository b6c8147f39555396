"""One compiled program: a function for one kind of arguments, with its variables lifted.

JAX programs have no variables. The function is traced with the variables it is known to use as
inputs; when it turns out to use others, the trace is given up with `NeedsMore` and made again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import _tree
from .._jax_compat import has_collectives
from .._topology import Topology
from ..errors import FailedPreconditionError
from ..values import Mirrored, PerReplica
from ..variables import Variable, _frames
from ..variables._effects import Effect
from ..variables._storage import STORAGE_LOCK
from ._feeding import Reading, Supply, supplied, unread
from ._lookups import Given, Lookups
from ._signature import Call, RaggedValue


@dataclass(frozen=True)
class Captures:
    """What a function is known to use: variables, some of them assigned, and devices."""

    variables: dict[int, Variable] = field(default_factory=dict[int, Variable])
    written: frozenset[int] = frozenset()
    topology: Topology | None = None
    tables: tuple[Any, ...] = ()  # one for each lookup of rows that live elsewhere

    def joined_by(self, other: Captures) -> Captures:
        """Return what is used in either."""
        return Captures(
            self.variables | other.variables,
            self.written | other.written,
            other.topology or self.topology,
            self.tables + other.tables,
        )

    def lacks(self, other: Captures) -> bool:
        """Tell whether `other` uses more than this."""
        return bool(
            other.variables.keys() - self.variables.keys()
            or other.written - self.written
            or (other.topology is not None and other.topology is not self.topology)
            or other.tables
        )


class NeedsMore(Exception):
    """A trace turned out to use more than was provided."""

    def __init__(self, captures: Captures, readings: list[Reading]) -> None:
        super().__init__()
        self.captures = captures
        self.readings = readings


class Program:
    """A function traced for one kind of arguments."""

    def __init__(self, fn: Callable[..., Any], call: Call, captures: Captures) -> None:
        self._fn = fn
        self.name = "a function"
        # The arrays of the call that was traced are not needed again and must not be kept alive.
        self._call = replace(call, inputs=[], feeders=[])
        self._captures = captures
        self._topology = captures.topology or call.topology
        variables = captures.variables.items()
        self._written = [v for key, v in variables if key in captures.written]
        read = [v for key, v in variables if key not in captures.written]
        self._read = [v for v in read if not v.is_remote]
        self._remote = [v for v in read if v.is_remote]
        self._foreign = any(v.topology is not self._topology for v in [*self._written, *self._read])
        self._lookups = Lookups(captures.tables, self._ids) if captures.tables else None
        self._effects: list[Effect] = []
        self._results: _Results
        self._time_limit: float | None = None
        self._meets_workers = False
        self._jitted = jax.jit(
            self._pure,
            donate_argnums=0,
            **({} if self._topology is None else {"out_shardings": self._out_shardings()}),
        )

    def compile(self, inputs: list[Any]) -> None:
        """Trace and compile, for inputs like these.

        Raises:
          NeedsMore: when the function uses more than was provided.
        """
        written = [variable.load() for variable in self._written]
        elsewhere = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in self._remote]
        written, given = self._placed(written, elsewhere, inputs)
        if self._lookups is not None:
            given = given._replace(rows=self._lookups.types(written, given))
        compiled = self._jitted.lower(written, given).compile()
        if self._topology is not None and self._topology.spans_workers:
            self._meets_workers = has_collectives(compiled)

    def __call__(self, inputs: list[Any]) -> Any:
        """Run, updating the variables."""
        if not self._meets_workers:
            return self._execute(inputs)[1]
        assert self._topology is not None
        run = self._topology.carry_out
        return run(self._execute, inputs, what=self.name, timeout=self._time_limit)[1]

    def _execute(self, inputs: list[Any]) -> tuple[Any, Any]:
        """Start the program, and return its outputs as they are, and as the function's results."""
        frame = _frames.current()
        elsewhere = frame.read_all(self._remote)  # which takes time, so not under the lock
        rows: Sequence[Any] = ()
        if self._lookups is not None:
            written = [variable.load() for variable in self._written]
            rows = self._lookups.fetch(frame, *self._placed(written, elsewhere, inputs))
        with STORAGE_LOCK:
            written = [variable.take_over() for variable in self._written]
            written, given = self._placed(written, elsewhere, inputs)
            plain, stacked, updated, effects = self._jitted(written, given._replace(rows=rows))
            for variable, data in zip(self._written, updated, strict=True):
                if variable.topology is not self._topology:
                    variable.store(data)
                else:
                    variable.store_output(data)
        if self._effects:
            frame.record(
                [e.with_arrays(arrays) for e, arrays in zip(self._effects, effects, strict=True)]
            )
        return (updated, plain, stacked), self._results.put_together(plain, stacked)

    def meet_workers(self, name: str) -> None:
        """Wait until all workers have compiled the program, if it is one they run together.

        Compiling takes longer on one than on another, and collectives wait for nobody that long.

        Raises:
          FailedPreconditionError: when others have compiled something else.
        """
        self.name = name
        topology = self._topology
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
        self, written: list[Any], elsewhere: list[Any], inputs: list[Any]
    ) -> tuple[list[Any], Given]:
        """Return the arguments of the program but looked-up rows, where it expects them."""
        read = [variable.load() for variable in self._read]
        topology = self._topology
        if topology is not None:
            inputs = [_on_devices(value, topology) for value in inputs]
            if self._foreign:
                written = [_on_devices(value, topology) for value in written]
                read = [_on_devices(value, topology) for value in read]
        elif written or read:
            inputs = [_beside(value, (written or read)[0]) for value in inputs]
        return written, Given(read, elsewhere, inputs)

    def _pure(
        self, written: list[Any], given: Given
    ) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        frame, supply, result = self._traced(written, given)
        self._check_provided(frame, supply.readings)
        self._effects = frame.effects
        self._time_limit = frame.time_limit
        self.elements_used = supply.used
        self._results = _Results()
        plain, stacked = self._results.take_apart(result, self._topology)
        updated = [frame.read(variable) for variable in self._written]
        return plain, stacked, updated, [effect.arrays for effect in frame.effects]

    def _ids(self, written: list[Any], given: Given) -> list[Any]:
        """Return which rows are looked up; XLA leaves out whatever else the function does."""
        frame, supply, _ = self._traced(written, given)
        unread(supply.readings)
        return [ids for _, ids in frame.lookups]

    def _traced(self, written: list[Any], given: Given) -> tuple[_frames.LiftingFrame, Supply, Any]:
        values = [
            *zip(self._written, written, strict=True),
            *zip(self._read, given.read, strict=True),
            *zip(self._remote, given.elsewhere, strict=True),
        ]
        frame = _frames.LiftingFrame(_frames.STORAGE, values, given.rows)
        args, kwargs, *fed = self._call.structure.unflatten(self._call.leaves(given.inputs))
        with supplied(fed) as supply, _frames.opened(frame):
            return frame, supply, self._fn(*args, **kwargs)

    def _check_provided(self, frame: _frames.LiftingFrame, readings: list[Reading]) -> None:
        topologies = list(frame.topologies.values())
        if len(topologies) > 1:
            raise RuntimeError(
                "A jt.function can use one strategy only, and this one used the devices of "
                f"{len(topologies)}. Write a function for each."
            )
        used = Captures(
            {id(variable): variable for variable in frame.missing},
            frozenset(id(variable) for variable, _ in frame.written),
            topologies[0] if topologies else None,
            tuple(table for table, _ in frame.unforeseen_lookups),
        )
        provided = Captures(self._captures.variables, self._captures.written, self._topology)
        if readings or provided.lacks(used):
            raise NeedsMore(used, readings)

    def _out_shardings(self) -> Any:
        assert self._topology is not None
        replicated, stacked = self._topology.replicated, self._topology.stacked
        variables = [
            stacked if variable.differs_between_replicas else replicated
            for variable in self._written
        ]
        return replicated, stacked, variables, replicated


class _Results:
    """Passes the results of a traced function out of it, the arrays among them through JAX."""

    def take_apart(self, result: Any, topology: Topology | None) -> tuple[list[Any], list[Any]]:
        leaves, self._structure = _tree.flatten(result)
        plain: list[Any] = []
        stacked: list[Any] = []
        self._rebuild: list[_Rebuild] = []
        for leaf in leaves:
            if isinstance(leaf, PerReplica) and not leaf.is_constant:
                assert topology is not None
                array = leaf.stacked(topology)
                if array is None:
                    raise RaggedValue
                stacked.append(array)
                self._rebuild.append(_per_replica(topology))
            elif isinstance(leaf, Mirrored):
                plain.append(leaf.component(None))
                self._rebuild.append(_mirrored(leaf.topology))
            elif isinstance(leaf, (jax.Array, np.ndarray, np.generic)):
                plain.append(jnp.asarray(leaf))
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
    return lambda arrays, rows: Mirrored(next(arrays), topology)


def _per_replica(topology: Topology) -> _Rebuild:
    return lambda arrays, rows: PerReplica.from_stacked(next(rows), topology)


def _constant(value: Any) -> _Rebuild:
    return lambda arrays, rows: value


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
