"""Keras variables whose values a strategy keeps."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import jax
import jax.numpy as jnp
import keras
import numpy as np

from .. import _context
from .._reduce import VariableAggregation, VariableSynchronization, agreement_of
from ..sharded import ShardedVariable
from ..variables import SyncOnReadVariable, Variable
from ._memory import check_fits
from ._private import in_symbolic_scope

Stored = Variable | ShardedVariable


class StrategyVariable(keras.Variable):
    """A Keras variable of which the strategy in whose scope it was created keeps the value.

    All there is to it is where the value is: Keras reads and writes `_value`, and that is the
    variable of the strategy, in whatever context the program is.
    """

    stored: Stored | None
    """The variable of the strategy, once there is one."""
    strategy: Any
    """The strategy in whose scope it was created."""

    def __new__(cls, *args: Any, **kwargs: Any) -> StrategyVariable:
        self = object.__new__(cls)
        # Keras may put off the initialization until the scope has been left.
        self.strategy = _context.get_strategy()
        self.stored = None
        self._owners = _context.owners()
        return self

    @property
    def __jaxtribute_variable__(self) -> Stored | None:
        return self.stored

    # --- What Keras reads and writes -------------------------------------------------------

    @property
    def _value(self) -> Any:
        if self.stored is None:
            return None
        if in_symbolic_scope():  # only shapes are asked for: no need to read, or to move a table
            return jnp.zeros(self._shape, self._dtype)
        return self.stored.value()

    @_value.setter
    def _value(self, value: Any) -> None:
        if value is None:  # not yet initialized, or let go of by Keras's own loop
            return
        if self.stored is None:
            self._create(value)
        elif _adds_up_remotely(self.stored):
            # What other workers add at the same time must not be lost.
            cast(Any, self.stored).assign_add(value - self.stored.value())
        elif _thread.synchronized:
            _assign_synchronized(self.stored, value)
        else:
            self.stored.assign(value)

    def _initialize_with_initializer(self, initializer: Callable[..., Any]) -> None:
        # The value must not become part of a program that is being traced.
        with jax.ensure_compile_time_eval():
            kind = _InitialInParts if isinstance(initializer, _MADE_IN_PARTS) else _Initial
            self._create(kind(initializer, tuple(self._shape), self._dtype))

    def _create(self, initial_value: Any) -> None:
        aggregation = VariableAggregation[self._aggregation.upper()]
        if aggregation is VariableAggregation.NONE:
            # Keras does not say how statistics and counters of layers are to be kept equal.
            aggregation = agreement_of(self._trainable, jnp.dtype(self._dtype))
        synchronization = self._synchronization.upper()
        size = math.prod(self._shape) * jnp.dtype(self._dtype).itemsize
        check_fits(self.strategy, size, f"The Keras variable {self.path!r} of shape {self._shape}")
        create = cast(Any, Variable)
        owners, self._owners = self._owners, []
        with ExitStack() as stack:
            stack.enter_context(
                _context.accessing(self.strategy, f"the Keras variable {self.path!r}")
            )
            for owner in owners:
                stack.enter_context(_context.opened(_context.Together(owner)))
            stored = create(
                initial_value,
                name=self.path,
                dtype=jnp.dtype(self._dtype),
                trainable=self._trainable,
                synchronization=VariableSynchronization[
                    "AUTO" if synchronization == "NONE" else synchronization
                ],
                aggregation=aggregation,
                shape=getattr(initial_value, "shape", None),
            )
        if _variables.get(id(stored)) is not None:
            # Replicas that take turns have each come by here, and share what is stored.
            raise RuntimeError(
                f"Each replica creates the Keras variable {self.path!r}, and Keras would train all "
                "of them. Create it in the layer's `build`, call the model once before `run`, or "
                "run it in a jt.function."
            )
        self.keep_in(stored)
        if isinstance(stored, SyncOnReadVariable) and not _starts_at_zero(initial_value):
            # Each replica has got the initial value, and their sum would be a multiple of it.
            stored.deal_out()

    def keep_in(self, stored: Stored) -> None:
        """Have the value be that of a variable of the strategy."""
        self.stored = stored
        _variables[id(stored)] = self

    def __repr__(self) -> str:
        if getattr(self.stored, "is_remote", False):  # whose value may be large, and far away
            return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}>"
        return super().__repr__()


# By the identity of what they store, which lives as long.
_variables: weakref.WeakValueDictionary[int, StrategyVariable] = weakref.WeakValueDictionary()

# Keras makes the names of variables without one from the name of their class.
StrategyVariable.__name__ = keras.Variable.__name__


class _Initial:
    """Makes the initial value of a variable by a Keras initializer."""

    def __init__(self, initializer: Callable[..., Any], shape: tuple[int, ...], dtype: str) -> None:
        self._initializer = initializer
        self.shape = shape
        self._dtype = dtype

    def __call__(self) -> Any:
        return self._made(self._initializer, self.shape)

    def _made(self, initializer: Callable[..., Any], shape: tuple[int, ...]) -> Any:
        value = initializer(shape, dtype=self._dtype)
        return keras.ops.convert_to_tensor(value, dtype=self._dtype)

    @property
    def is_zero(self) -> bool:
        """Whether the value is known to consist of zeros."""
        return isinstance(self._initializer, keras.initializers.Zeros)


def _starts_at_zero(initial_value: Any) -> bool:
    if isinstance(initial_value, _Initial):
        return initial_value.is_zero
    return not np.any(initial_value)


class _InitialInParts(_Initial):
    """Makes it part by part, for a strategy that divides the variable, or as a whole."""

    def __call__(
        self,
        partition_shape: tuple[int, ...] | None = None,
        partition_offset: tuple[int, ...] | None = None,
    ) -> Any:
        start = partition_offset[0] if partition_offset else 0
        initializer = _seeded_for(self._initializer, start) if start else self._initializer
        return self._made(initializer, partition_shape or self.shape)


# Of these each element is made without regard to the others, and to the shape of the whole.
_MADE_IN_PARTS = (
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
)


def _seeded_for(initializer: Any, start: int) -> Any:
    """Return an initializer that draws other numbers for the part that starts at a row."""
    seed = getattr(initializer, "seed", None)
    if not isinstance(seed, int):
        return initializer
    other = int(np.random.SeedSequence([seed, start]).generate_state(1)[0]) & 0x7FFFFFFF
    return type(initializer).from_config(initializer.get_config() | {"seed": other})


# --- Writing -------------------------------------------------------------------------------


class _Thread(threading.local):
    synchronized = False
    counting = False


_thread = _Thread()


@contextmanager
def synchronized(counting: bool = False) -> Generator[None]:
    """Take what is assigned to Keras variables, inside `run`, to be equal on all replicas.

    Args:
      counting: whether it continues a count, to which other workers add at the same time.
    """
    before = _thread.synchronized, _thread.counting
    _thread.synchronized, _thread.counting = True, counting
    try:
        yield
    finally:
        _thread.synchronized, _thread.counting = before


def is_synchronized() -> bool:
    """Tell whether what is assigned to Keras variables is taken to be equal on all replicas."""
    return _thread.synchronized


def _assign_synchronized(stored: Stored, value: Any) -> None:
    if isinstance(stored, ShardedVariable):
        stored.assign(value)
    else:
        stored.assign_synchronized(value)


def _adds_up_remotely(stored: Stored) -> bool:
    """Tell whether workers add to a variable, each its own part."""
    if not (stored.is_remote and getattr(stored.distribute_strategy, "is_on_worker", False)):
        return False
    first: Any = stored.variables[0] if isinstance(stored, ShardedVariable) else stored
    is_sum = (
        first.synchronization is VariableSynchronization.ON_READ
        and first.aggregation is VariableAggregation.SUM
    )
    return is_sum or _thread.counting


def stored(variable: Any) -> Stored:
    """Return the variable of the strategy that is behind a Keras variable.

    Raises:
      ValueError: when there is none, as it was created outside of any scope.
    """
    found = getattr(variable, "__jaxtribute_variable__", None)
    if found is None:
        raise ValueError(
            f"The Keras variable {getattr(variable, 'path', variable)!r} was created outside of a "
            "strategy's scope. Create the model, its optimizer and its metrics inside "
            "`with strategy.scope():`."
        )
    return found


def variable_of(stored: Stored) -> StrategyVariable | None:
    """Return the Keras variable whose value a variable of a strategy is."""
    found = _variables.get(id(stored))
    return found if found is not None and found.stored is stored else None
