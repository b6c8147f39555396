"""What is asked for when a variable is created, checked and made concrete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._reduce import VariableAggregation, VariableSynchronization
from .._wide import check_fits, check_numeric, check_within
from ..errors import TracerLeakError
from ..values import DistributedValues
from ..values._arithmetic import operand
from . import _frames
from ._copies import as_own_array


class TracedInitialValueError(TracerLeakError):
    """A variable was to start from a value that exists only inside a trace."""


@dataclass(frozen=True)
class VariableSpec:
    """A variable to be created."""

    initial_value: jax.Array
    trainable: bool
    name: str
    synchronization: VariableSynchronization
    aggregation: VariableAggregation

    @classmethod
    def resolve(
        cls,
        initial_value: Any = None,
        trainable: bool | None = None,
        name: str | None = None,
        dtype: Any = None,
        synchronization: VariableSynchronization = VariableSynchronization.AUTO,
        aggregation: VariableAggregation = VariableAggregation.NONE,
        shape: Sequence[int] | None = None,
        per_worker_variable: bool = False,
    ) -> VariableSpec:
        """Check the arguments of `Variable` and compute the initial value.

        Raises:
          ValueError: for a missing initial value, or settings that contradict each other.
        """
        if per_worker_variable:
            raise ValueError(
                f"The variable {name!r} was asked for with per_worker_variable=True, which only a "
                "ParameterServerStrategy has. Leave it out, or create the variable in its scope."
            )
        if not isinstance(synchronization, VariableSynchronization):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"Invalid variable synchronization {synchronization!r} for variable {name!r}. Use "
                "one of jt.VariableSynchronization's AUTO, ON_WRITE, ON_READ."
            )
        if not isinstance(aggregation, VariableAggregation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"Invalid variable aggregation {aggregation!r} for variable {name!r}. Use one of "
                "jt.VariableAggregation's NONE, SUM, MEAN, ONLY_FIRST_REPLICA."
            )
        on_read = synchronization is VariableSynchronization.ON_READ
        value = _initial(initial_value, dtype, name)
        _check_shape(value, shape, name)
        if aggregation is VariableAggregation.MEAN and not jnp.issubdtype(value.dtype, jnp.inexact):
            raise ValueError(
                f"The variable {name!r} has dtype {value.dtype}, for which aggregation MEAN would "
                "lose fractions. Use a floating-point dtype, or SUM or ONLY_FIRST_REPLICA."
            )
        return cls(
            initial_value=value,
            trainable=not on_read if trainable is None else trainable,
            name=name or "Variable",
            synchronization=synchronization,
            aggregation=aggregation,
        )


def initial_array(
    initial_value: Any, dtype: Any, name: str, shape: Sequence[int] | None = None
) -> np.ndarray[Any, Any]:
    """Return an initial value as an array of the host, of a type that JAX has.

    Raises:
      ValueError: when there is none, or it has another shape.
    """
    if isinstance(initial_value, np.ndarray) and dtype is None:
        _check_fits(initial_value, None, name)
        dtype = jax.dtypes.canonicalize_dtype(initial_value.dtype)
    if isinstance(initial_value, np.ndarray):  # which may be too large to be copied
        _check_fits(initial_value, dtype, name)
        value = np.asarray(initial_value, dtype)
    else:
        value = _initial(initial_value, dtype, name)
        if isinstance(value, Tracer):
            raise _traced(value, name)
        value = np.asarray(value)
    _check_shape(value, shape, name)
    return value


def _check_fits(value: Any, dtype: Any, name: str | None) -> None:
    """Refuse text, and whole numbers that the variable would cut off."""
    what = f"The variable {name or 'Variable'!r}"
    check_numeric(value, what)
    if dtype is None:
        check_fits(value, what)
    elif isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iu":
        dtype = jax.dtypes.canonicalize_dtype(dtype)
        if jnp.issubdtype(dtype, jnp.integer):
            check_within(value, dtype, what)


def _check_shape(value: Any, shape: Sequence[int] | None, name: str | None) -> None:
    if shape is not None and tuple(shape) != value.shape:
        raise ValueError(
            f"The variable {name or 'Variable'!r} was asked for with shape {tuple(shape)}, and its "
            f"initial value has shape {value.shape}."
        )


def _initial(initial_value: Any, dtype: Any, name: str | None) -> jax.Array:
    if initial_value is None:
        raise ValueError(
            f"The variable {name or 'Variable'!r} needs an initial value: an array, a number, or a "
            "function without arguments that returns one."
        )
    value = initial_value
    if isinstance(value, DistributedValues):
        value = value.values[0]
    # A variable outlives the trace it is created in, so its value is computed right away.
    with jax.ensure_compile_time_eval():
        value = operand(value() if callable(value) else value)
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            raise TypeError(
                f"The variable {name or 'Variable'!r} cannot hold a random key, {value.dtype}. "
                "Keep its numbers, jt.Variable(jax.random.key_data(key)), and make it a key again "
                "with jax.random.wrap_key_data."
            )
        if not isinstance(value, Tracer):
            _check_fits(value, dtype, name)
            return _own(value, dtype)
    return untraced(value, dtype, name)


def untraced(value: Any, dtype: Any, name: str | None) -> Any:
    """Return a traced initial value as an array, or as a tracer of the program that computes it.

    Raises:
      TracedInitialValueError: when it is known only further inside.
    """
    try:  # How it changes the result is of no concern to a gradient.
        primal: Any = jax.lax.stop_gradient(value)
    except jax.errors.UnexpectedTracerError as error:  # left over from a trace that has ended
        raise _traced(value, name) from error
    if not isinstance(primal, Tracer):
        return _own(primal, dtype)
    frame = _frames.current().keeper_of(primal)
    if frame is None:
        raise _traced(primal, name)
    with frame.on_own_trace():
        return _own(primal, dtype)


def _own(value: Any, dtype: Any) -> jax.Array:
    # Always a copy, as compiled steps update variables in place; and never weakly typed, as a
    # variable keeps its type.
    return as_own_array(value, dtype)


def _traced(value: Any, name: str | None) -> TracedInitialValueError:
    return TracedInitialValueError(
        f"The initial value of the variable {name or 'Variable'!r} is {value}, which exists only "
        "inside a JAX transformation (jax.jit, jax.vmap, jax.lax.scan, jax.lax.cond ...). Compute "
        "it outside of that, in the jt.function or before it; or pass a function that needs "
        "nothing of it, which is called at once: jt.Variable(lambda: ...)."
    )
