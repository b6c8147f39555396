"""A value that may differ from replica to replica."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context
from .._jax_compat import is_staging, movable, outside_traces
from .._topology import Topology
from .._wide import is_text
from ._arithmetic import Arithmetic
from ._base import DistributedValues

__all__ = ["PerReplica"]

Type = list[Any] | None  # [shape, name of the dtype], as JSON has it; None for what is no array

_PYTHON_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))


class PerReplica(Arithmetic, DistributedValues):
    """One value for each replica, such as `Strategy.run` returns.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> strategy.run(lambda: jt.get_replica_context().replica_id_in_sync_group * 10)
    PerReplica:{
      0: 0,
      1: 10
    }

    Inside `run` it converts to the running replica's value; outside it has to be combined first,
    with `Strategy.reduce`, `Strategy.gather` or `Strategy.experimental_local_results`.

    Arrays of one shape are held as one array, stacked on a leading replica axis and sharded over
    the devices, so that entering a compiled step copies nothing.
    """

    __hash__ = object.__hash__  # pyright: ignore[reportAssignmentType]

    def __init__(
        self,
        values: Sequence[Any],
        topology: Topology | None = None,
        types: Sequence[Type] | None = None,
    ) -> None:
        self._values: tuple[Any, ...] | None = tuple(values)
        self._array: Any = None
        self._rows: np.ndarray[Any, Any] | None = None  # of all workers
        self._types = types  # of the components on all workers, once they are known
        self.topology = topology
        self.total: Any = None

    @classmethod
    def from_stacked(cls, array: Any, topology: Topology, total: Any = None) -> PerReplica:
        """Return the value whose components are the rows of `array`, an array or a tracer.

        Args:
          array: the components.
          topology: the devices that hold them.
          total: their sum, if it is known.
        """
        self = cls.__new__(cls)
        self._values = None
        self._rows = None
        self._array = array
        self._types = None
        self.topology = topology
        self.total = total
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        # Devices are those of the process: what is pickled are the values.
        return PerReplica, (tuple(_on_host(value) for value in self.values),)

    def __deepcopy__(self, memo: dict[int, Any]) -> PerReplica:
        if self._values is None:  # rows of an array, which nobody can change
            return PerReplica.from_stacked(self._array, cast(Any, self.topology), self.total)
        return PerReplica(copy.deepcopy(self._values, memo), self.topology, self._types)

    @property
    def values(self) -> tuple[Any, ...]:
        """The value of each local replica, in order; JAX moves them when they are combined."""
        return tuple(movable(component) for component in self.components)

    @property
    def components(self) -> tuple[Any, ...]:
        """The value of each local replica, in order, where it is."""
        if self._values is None:
            assert self.topology is not None
            if isinstance(self._array, Tracer):
                return tuple(self._array[i] for i in range(self.topology.num_replicas))
            with jax.ensure_compile_time_eval():
                self._values = self.topology.unstack(self._array)
        return self._values

    @property
    def is_traced(self) -> bool:
        """Whether the value exists only while a compiled step is traced."""
        if self._values is None:
            return isinstance(self._array, Tracer)
        return any(isinstance(v, Tracer) for v in self._values)

    @property
    def is_of_host(self) -> bool:
        """Whether it is held as it was given, and not as an array on the devices."""
        return self._array is None

    @property
    def is_constant(self) -> bool:
        """Whether all replicas hold the same Python value, which is then no array."""
        if self._values is None or isinstance(self._values[0], (jax.Array, np.ndarray, np.generic)):
            return False
        first, *others = self._values
        if self.topology is not None and self.topology.spans_workers and is_array_like(first):
            return False  # another worker may hold another number
        return all(is_same_constant(first, other) for other in others)

    def stacked(self, topology: Topology) -> Any | None:
        """Return the components as one array, or None when they have no common shape and type."""
        if self._array is None:
            assert self._values is not None
            if topology.spans_workers:
                types = self.types(topology)
                if types[0] is None or any(other != types[0] for other in types):
                    return None
            elif not _have_one_type(self._values):
                return None
            if any(isinstance(v, Tracer) for v in self._values):
                return jnp.stack(self._values)
            with jax.ensure_compile_time_eval():  # it may be met again after this trace
                self._array, self.topology = topology.stack(self._values), topology
        if topology.spans_workers and not isinstance(self._array, Tracer) and is_staging():
            return self._as_constant(topology)
        return self._array

    def _as_constant(self, topology: Topology) -> Any:
        """Return all components, for a program, which cannot capture arrays of other workers."""
        rows = self._rows
        if rows is None:
            rows = self._rows = outside_traces(lambda: np.asarray(topology.collect(self._array)))
        return rows

    @property
    def asks_for_types(self) -> bool:
        """Whether it has to ask other workers before it can become one array."""
        spans_workers = self.topology is not None and self.topology.spans_workers
        return spans_workers and self._array is None and self._types is None and not self.is_traced

    def set_types(self, types: Sequence[Type]) -> None:
        """Take note of the types of the components on all workers."""
        self._types = types

    @property
    def is_uneven(self) -> bool:
        """Whether components differ in shape or type, as far as is known without asking."""
        if self._values is None:
            return False
        types = self._types or [type_of(value) for value in self._values]
        return any(other != types[0] for other in types)

    def may_differ_elsewhere(self, topology: Topology) -> bool:
        """Whether a component of another worker differs in shape or type, or may do so."""
        return topology.spans_workers and (self._types is None or self.is_uneven)

    def types(self, topology: Topology) -> Sequence[Type]:
        """Return the shape and type of the component of each replica, those of other workers too.

        All workers have to ask for it, as none knows what the others hold.
        """
        if self._types is None:
            self._types = topology.all_of(
                "the shapes of a value", [type_of(value) for value in self.components]
            )
        return self._types

    def component(self, replica_id: Any, topology: Topology | None) -> Any:
        """Return the value of one replica, whose id may be known only inside a trace."""
        if isinstance(replica_id, int):
            return self.components[replica_id - (topology.first_local if topology else 0)]
        assert topology is not None
        array = self.stacked(topology)
        if array is None:
            raise ValueError(
                f"{self!r} was captured by a compiled step, and its components have no common "
                "shape and type. Pass it through the `args` of `run` instead."
            )
        return jax.lax.dynamic_index_in_dim(array, replica_id, keepdims=False)

    def _local(self) -> Any | None:
        context = _context.get_replica_context()
        if context is None or not _context.has_strategy():
            return None
        return self.component(
            context.replica_id_in_sync_group, getattr(context.strategy, "topology", None)
        )

    def _operand(self) -> jax.Array:
        local = self._local()
        if local is None:
            raise TypeError(_NOT_AN_ARRAY.format(self))
        return local

    @property
    def __jax_array__(self) -> Callable[[], jax.Array]:
        # A property, as functions such as jnp.add ask whether there is one, only to refuse it.
        local = self._local()
        if local is None:
            raise ValueError(_NOT_AN_ARRAY.format(self))
        return lambda: jnp.asarray(local)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.asarray(self.__jax_array__(), dtype=dtype)


_NOT_AN_ARRAY = (
    "What has one value for each replica cannot be used as one array outside of them. Combine it "
    "first: strategy.reduce('SUM', value, axis=None), strategy.gather(value, axis=0) or "
    "strategy.experimental_local_results(value). It is {!r}"
)


def learn_types(values: Sequence[PerReplica]) -> None:
    """Ask other workers for the types of several values at once."""
    unknown = [value for value in values if value.asks_for_types]
    if not unknown:
        return
    topology = unknown[0].topology
    assert topology is not None
    columns = [value.components for value in unknown]
    rows = [[type_of(part) for part in parts] for parts in zip(*columns, strict=True)]
    everywhere = topology.all_of("the shapes of values", rows)
    for i, value in enumerate(unknown):
        value.set_types([row[i] for row in everywhere])


def is_same_constant(a: Any, b: Any) -> bool:
    """Tell whether two values are one object, or equal Python constants."""
    if a is b:
        return True
    return type(a) is type(b) and isinstance(a, _PYTHON_CONSTANTS) and a == b


def is_array_like(value: Any) -> bool:
    """Tell whether `value` is an array, a tracer, or a number that can become one."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic, bool, int, float, complex))


def type_of(value: Any) -> Type:
    """Return the shape and type of an array or number."""
    if not is_array_like(value) or is_text(value):
        return None
    return [list(np.shape(value)), str(jnp.result_type(value))]


def _have_one_type(values: Sequence[Any]) -> bool:
    first = values[0]
    if all(isinstance(v, np.ndarray) for v in values):  # what a training step is fed with
        same = all(v.shape == first.shape and v.dtype == first.dtype for v in values)
        return same and not is_text(first)
    if not all(is_array_like(v) and not is_text(v) for v in values):
        return False
    shape, dtype = np.shape(first), jnp.result_type(first)
    return all(np.shape(v) == shape and jnp.result_type(v) == dtype for v in values[1:])


def _on_host(value: Any) -> Any:
    is_array = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    is_key = is_array and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    return np.asarray(value) if is_array and not is_key else value
