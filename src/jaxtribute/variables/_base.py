"""Variables: arrays with a name that can be assigned to."""

from __future__ import annotations

import copy
from abc import ABCMeta
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context, _devices, _tree
from .._ids import take
from .._reduce import VariableAggregation, VariableSynchronization
from ..values import DistributedValues, IndexedSlices
from ..values._arithmetic import Arithmetic
from . import _checks, _frames, _scatter
from ._convert import matching
from ._spec import VariableSpec
from ._storage import STORAGE_LOCK, LostValueError, Stored

__all__ = ["Variable"]

Combine = Callable[[Any, Any], Any]  # (old value, operand) -> new value


class _CreatedByStrategy(ABCMeta):
    """Makes `Variable(...)` create whatever the strategy in force makes of a variable."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if cls is not Variable:
            return super().__call__(*args, **kwargs)
        spec = dict(zip(_ARGUMENTS, args, strict=False)) | kwargs
        if len(args) > len(_ARGUMENTS) or not spec.keys() <= set(_ARGUMENTS):
            raise TypeError(
                f"Variable takes the arguments {', '.join(_ARGUMENTS)}; got {len(args)} positional "
                f"ones and {', '.join(kwargs) or 'no keywords'}."
            )
        _context.check_may_create_variable()
        create = _context.get_strategy().create_variable
        for creator in _context.creators():
            create = _bind(creator, create)
        variable = create(**spec)
        _frames.current().was_created(variable)
        return variable


_ARGUMENTS = (
    "initial_value",
    "trainable",
    "name",
    "dtype",
    "synchronization",
    "aggregation",
    "shape",
    "per_worker_variable",
)


def _bind(creator: Callable[..., Any], next_creator: Callable[..., Any]) -> Callable[..., Any]:
    def create(**spec: Any) -> Any:
        return creator(next_creator, **spec)

    return create


class Variable(Stored, Arithmetic, _tree.Leaf, metaclass=_CreatedByStrategy):
    """An array that keeps its place and name while its value changes.

    Created inside `Strategy.scope` it becomes what the strategy makes of it; outside, it is one
    array on one device.

    >>> v = jt.Variable([1.0, 2.0], name="v")
    >>> v.assign_add([1.0, 1.0])
    <jt.Variable 'v:0' shape=(2,) dtype=float32, numpy=array([2., 3.], dtype=float32)>
    >>> v * 2
    Array([4., 6.], dtype=float32)

    Args:
      initial_value: an array, a number, or a function without arguments that returns one.
      trainable: whether it is among a module's `trainable_variables`.
      name: how it is called in messages and checkpoints.
      dtype: the type to convert the initial value to.
      synchronization: when copies on several replicas are brought together.
      aggregation: how what replicas assign is combined.
      shape: the shape, which follows from the initial value; but with both it and `dtype`, a
        variable that is divided between parameter servers can be made part by part, by a function
        of `partition_shape` and `partition_offset`.
      per_worker_variable: whether each worker of a parameter-server cluster is to have one of its
        own; then a `PerWorkerVariable` is returned.

    Raises:
      ValueError: for a missing initial value, or settings that contradict each other.
    """

    def __init__(self, spec: VariableSpec, device: jax.Device | None = None) -> None:
        self._name = spec.name
        self._trainable = spec.trainable
        self._synchronization = spec.synchronization
        self._aggregation = spec.aggregation
        self._shape: tuple[int, ...] = spec.initial_value.shape
        self._dtype = spec.initial_value.dtype
        super().__init__(spec.initial_value, device)
        if isinstance(spec.initial_value, Tracer):
            _frames.start(self, spec.initial_value)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _register(cls)

    # --- What it is ------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name, without a suffix."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the value."""
        return self._shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self._dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self._shape))

    @property
    def trainable(self) -> bool:
        """Whether it is among a module's `trainable_variables`."""
        return self._trainable

    @property
    def synchronization(self) -> VariableSynchronization:
        """When copies on several replicas are brought together."""
        return self._synchronization

    @property
    def aggregation(self) -> VariableAggregation:
        """How what replicas assign is combined."""
        return self._aggregation

    @property
    def device(self) -> str:
        """The full name of the device that holds the value, the first one if there are several."""
        return _devices.canonical_name(self.first_device())

    @property
    def distribute_strategy(self) -> Any | None:
        """The strategy that created it, if one did."""
        return None

    @property
    def is_remote(self) -> bool:
        """Whether the value lives in another process, on a parameter server."""
        return False

    def is_initialized(self) -> bool:
        """Tell whether it has a value.

        It has none while the `jt.function` that creates it is being traced, if that computes the
        initial value.
        """
        return not self.has_no_value_yet

    # --- Reading ---------------------------------------------------------------------------

    def value(self) -> jax.Array:
        """Return the value: the replica's own inside `run`, the whole variable's outside."""
        return self._read(_frames.current())

    def _read(self, frame: _frames.Frame) -> jax.Array:
        return frame.read(self)

    def take(self, frame: _frames.Frame, ids: jax.Array) -> jax.Array:
        """Return the rows `ids` of what the variable is worth in a frame."""
        value = self._read(frame)
        if not ids.size:  # of which JAX would make a constant: a gradient would not know the table
            return jax.lax.slice_in_dim(value, 0, 0)
        return take(value, ids)

    def read_value(self) -> jax.Array:
        """Return the value; the same as `value`."""
        return self.value()

    def numpy(self) -> np.ndarray[Any, Any]:
        """Return the value as a NumPy array of its own."""
        return np.array(self.value())

    def _operand(self) -> jax.Array:
        return self.value()

    def __jax_array__(self) -> jax.Array:
        return self.value()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.value(), dtype=dtype)

    # --- Writing ---------------------------------------------------------------------------

    def assign(
        self,
        value: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Replace the value.

        Args:
          value: an array, number, variable or distributed value of the variable's shape.
          use_locking: not used; no update is lost either way.
          name: not used.
          read_value: whether the variable is returned.

        Returns:
          The variable itself, or `None` without `read_value`.

        Raises:
          ValueError: for another shape or an unsuitable type, or, inside `run`, when the
            variable's aggregation does not say how the replicas' values are to be combined.
        """
        updated = self._update(replace, value)
        return updated if read_value else None

    def assign_add(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Add to the value; otherwise as `assign`."""
        updated = self._update(_add, delta)
        return updated if read_value else None

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool | None = None,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract from the value; otherwise as `assign`."""
        updated = self._update(_subtract, delta)
        return updated if read_value else None

    def scatter_add(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Add to some rows.

        >>> v = jt.Variable([1.0, 2.0, 3.0])
        >>> v.scatter_add(jt.IndexedSlices(values=[10.0], indices=[1])).numpy().tolist()
        [1.0, 12.0, 3.0]

        Args:
          sparse_delta: the rows, as `IndexedSlices`.
          use_locking: not used; no update is lost either way.
          name: not used.

        Returns:
          The variable itself.

        Raises:
          TypeError: when `sparse_delta` is something else.
          InvalidArgumentError: when an index is out of range, negative ones included, or values
            do not fit the indices. Inside compiled functions, where indices are known too late,
            rows out of range are left out; see `jt.config.check_ids_in_functions`.
          NotImplementedError: when copies or aggregation of this variable rule it out.
        """
        return self._scatter("add", sparse_delta)

    def scatter_sub(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Subtract from some rows; otherwise as `scatter_add`."""
        return self._scatter("sub", sparse_delta)

    def scatter_mul(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Multiply some rows; otherwise as `scatter_add`."""
        return self._scatter("mul", sparse_delta)

    def scatter_div(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Divide some rows; otherwise as `scatter_add`."""
        return self._scatter("div", sparse_delta)

    def scatter_min(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Take the minimum with some rows; otherwise as `scatter_add`."""
        return self._scatter("min", sparse_delta)

    def scatter_max(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Take the maximum with some rows; otherwise as `scatter_add`."""
        return self._scatter("max", sparse_delta)

    def scatter_update(
        self, sparse_delta: IndexedSlices, use_locking: bool = False, name: str | None = None
    ) -> Any:
        """Replace some rows; otherwise as `scatter_add`."""
        return self._scatter("update", sparse_delta)

    def _scatter(self, kind: str, sparse_delta: IndexedSlices) -> Any:
        rows = _checks.checked_rows(self, sparse_delta)
        if kind == "div":
            _checks.check_divisors(self, rows.values)
        return self.scatter_rows(kind, rows)

    def scatter_rows(self, kind: str, rows: IndexedSlices) -> Any:
        """Change rows whose indices were looked at before; those out of range are left out."""
        return self._update(_scatter.combine(kind), rows)

    def _update(self, combine: Combine, value: Any) -> Any:
        context = _context.get_replica_context()
        if context is not None and context.num_replicas_in_sync > 1:
            raise ValueError(
                f"The variable {self.name!r} was created outside {context.strategy!r}'s scope and "
                f"has one copy, which {context.num_replicas_in_sync} replicas cannot assign to at "
                "once. Create it inside `with strategy.scope():`, with an aggregation that says "
                "how the replicas' values are to be combined."
            )
        if isinstance(value, DistributedValues):
            raise ValueError(
                f"The variable {self.name!r} has one copy and cannot be assigned {value!r}, which "
                "has a value for each replica. Combine them first, with strategy.reduce."
            )
        self._write(combine, value)
        return self

    def _write(self, combine: Combine, value: Any) -> None:
        """Replace what the variable is worth here by `combine` of it and `value`."""
        frame = _frames.current()
        with STORAGE_LOCK:  # so that no other thread's update is lost in between
            old = self._before(frame, combine)
            frame.write(self, combine(old, beside(old, matching(self, value))))

    def _before(self, frame: _frames.Frame, combine: Combine) -> Any:
        """Return what the variable is worth, to be combined with something; a lost one is replaced.

        Raises:
          FailedPreconditionError: when it is lost, and would be needed.
        """
        try:
            return self._read(frame)
        except LostValueError:
            if combine is not replace:
                raise
        zeros = jnp.zeros(self.shape, self.dtype)  # on the device of the replica, inside one
        return zeros if frame.local else jax.device_put(zeros, self.first_device())

    def assign_synchronized(self, value: Any) -> None:
        """Assign, inside `run`, a value that the caller knows to be equal on all replicas."""
        self._write(replace, value)

    # --- Python's protocols ----------------------------------------------------------------

    def ref(self) -> VariableReference:
        """Return a stand-in that can be a dictionary key."""
        return VariableReference(self)

    def __copy__(self) -> Any:
        return copy.deepcopy(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        duplicate = object.__new__(type(self))
        vars(duplicate).update(vars(self))
        duplicate.copy_storage(self)
        memo[id(self)] = duplicate
        return duplicate

    def __reduce__(self) -> tuple[Any, ...]:
        # The value and what was asked for: devices, and the strategy, are those of the process.
        settings = {
            "trainable": self.trainable,
            "name": self.name,
            "synchronization": self.synchronization,
            "aggregation": self.aggregation,
        }
        return _unpickled, (self.numpy(), settings)

    def __repr__(self) -> str:
        return describe(self, self.name, _frames.current().read(self))


def _register(cls: type[Variable]) -> None:
    """Let JAX's functions take variables for the arrays they hold."""
    jax.tree_util.register_pytree_node(
        cls,
        lambda variable: ((variable.value(),), None),
        lambda _, children: children[0],  # pyright: ignore[reportArgumentType]
    )


_register(Variable)


class VariableReference:
    """Stands for a variable where a hashable object is needed."""

    def __init__(self, variable: Variable) -> None:
        self._variable = variable

    def deref(self) -> Variable:
        """Return the variable."""
        return self._variable

    def __hash__(self) -> int:
        return id(self._variable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, VariableReference) and other._variable is self._variable


def _unpickled(value: Any, settings: dict[str, Any]) -> Any:
    """Create a variable, in the strategy in force, that is worth what another one was."""
    create: Any = Variable
    variable = create(value, **settings)
    if variable.differs_between_replicas:  # whose copies together are to be worth it
        variable.assign(value)
    return variable


def beside(array: Any, value: Any) -> Any:
    """Return `value` on the device of `array`, so that the two can be combined."""
    if isinstance(array, Tracer) or isinstance(value, Tracer):
        return value
    return jax.tree.map(
        lambda leaf: (
            jax.device_put(leaf, array.sharding)
            if leaf.committed and leaf.devices() != array.devices()
            else leaf
        ),
        value,
    )


def describe(variable: Any, name: str, value: Any) -> str:
    """Return the way a variable, or one copy of it, is printed."""
    text = f"<jt.Variable '{name}:0' shape={variable.shape} dtype={variable.dtype}"
    if isinstance(value, Tracer):
        return text + ">"
    array = np.asarray(value)
    return f"{text}, numpy={array.item() if array.ndim == 0 else array!r}>"


def replace(old: Any, value: Any) -> Any:
    """Combine by forgetting the old value."""
    return value


def _add(old: Any, value: Any) -> Any:
    return old + value


def _subtract(old: Any, value: Any) -> Any:
    return old - value
