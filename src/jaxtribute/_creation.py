"""Scopes that affect where and how variables are created."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import jax

from . import _context, _devices

__all__ = ["device", "variable_creator_scope"]


@_context.lasting
def variable_creator_scope(variable_creator: Callable[..., Any]) -> Generator[None]:
    """Have a say in the creation of variables.

    >>> def frozen(next_creator, **kwargs):
    ...     return next_creator(**(kwargs | {"trainable": False}))
    >>> with jt.variable_creator_scope(frozen):
    ...     v = jt.Variable(1.0)
    >>> v.trainable
    False

    Args:
      variable_creator: called with the next creator and the arguments of `Variable` by name;
        returns a variable, typically what the next creator returns. The innermost scope is called
        first.
    """
    with _context.opened(_context.Creator(variable_creator)):
        yield


@_context.lasting
def device(device_name: str | jax.Device) -> Generator[None]:
    """Place new arrays, and variables outside any strategy, on a device.

    >>> with jt.device("CPU:1"):
    ...     x = jnp.ones(3)
    >>> x.device == jax.devices("cpu")[1]
    True

    Args:
      device_name: a device or its name, such as "GPU:0".

    Raises:
      ValueError: when there is no such device.
    """
    chosen = _devices.resolve(device_name)
    with jax.default_device(chosen), _context.opened(_context.Device(chosen)):
        yield
