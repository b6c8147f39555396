"""How a running replica deals with the others.

A replica is alone, or one of several threads that take turns (`_eager`), or part of one compiled
program that runs on all devices (`_spmd`). `ReplicaContext` is the same for all; what differs is
its `Exchange`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .. import _context, _tree
from .._options import CommunicationOptions
from .._reduce import ReduceOp
from .._wide import check_fits, check_numeric
from ..values._arithmetic import operand


class Exchange(Protocol):
    """The ways in which a replica gets something from the others."""

    def all_reduce(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        """Combine arrays of all replicas."""
        ...

    def all_gather(self, value: Any, axis: int) -> Any:
        """Concatenate an array of all replicas."""
        ...

    def sizes(self, size: int) -> tuple[int, ...] | None:
        """Return how many examples each replica has, or None where nobody can be asked."""
        ...

    def from_first(self, value: Any) -> Any:
        """Return what the first replica has."""
        ...

    def expect_sum(self, value: Any) -> None:
        """Take note that `value`, a scalar, will probably be added up over all replicas."""
        ...

    def common(self, value: Any) -> bool:
        """Tell whether `value` is known to be one object, the same for all replicas."""
        ...

    def merge_call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Call `fn` once for all replicas."""
        ...


class Alone:
    """The exchange of a replica that is the only one."""

    def __init__(self, strategy: Any) -> None:
        self._strategy = strategy

    def all_reduce(
        self, op: ReduceOp, values: Sequence[Any], options: CommunicationOptions | None = None
    ) -> list[Any]:
        for value in values:
            check_numeric(value, "all_reduce")
            check_fits(value, "all_reduce")
        return [jnp.asarray(value, jnp.result_type(value)) for value in values]

    def all_gather(self, value: Any, axis: int) -> Any:
        check_numeric(value, "all_gather")
        check_fits(value, "all_gather")
        return operand(value)

    def sizes(self, size: int) -> tuple[int, ...] | None:
        return (size,)

    def from_first(self, value: Any) -> Any:
        return value

    def expect_sum(self, value: Any) -> None:
        pass

    def common(self, value: Any) -> bool:
        return False

    def merge_call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        with _context.opened(_context.Side(self._strategy)):
            return fn(self._strategy, *args, **kwargs)


def check_common_value(op: ReduceOp, value: Any, num_replicas: int) -> None:
    """Refuse to add up one value that is the same for all replicas.

    Zero is let through: it is the same however often it counts.

    Raises:
      ValueError: for SUM over several replicas.
    """
    if op is ReduceOp.MEAN or num_replicas == 1 or _is_known_zero(value):
        return
    raise ValueError(
        f"The value {value!r} is the same for all {num_replicas} replicas, and cannot be reduced "
        "with the given reduce op SUM: it is not clear whether it should count once or "
        f"{num_replicas} times. Use MEAN to keep it as it is, or compute it inside `run`."
    )


def _is_known_zero(value: Any) -> bool:
    return isinstance(value, (np.ndarray, np.generic, int, float)) and not np.any(value)


def nested_call_error(method: str) -> RuntimeError:
    """Say that replicas were to meet where they cannot."""
    return RuntimeError(
        f"{method} was called inside a JAX transformation such as jax.jit, jax.grad or "
        "jax.lax.scan that began inside the replica, where replicas cannot meet. Call it outside "
        "of that; for gradients use jt.value_and_grad, and to compile, call `run` inside a "
        "jt.function."
    )


def on_device(arguments: Any, device: jax.Device) -> Any:
    """Copy arrays that were placed on another device to the replica's own."""

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        elsewhere = leaf.committed and leaf.devices() != {device}
        return jax.device_put(leaf, device) if elsewhere else leaf

    return _tree.map_leaves(move, arguments)
