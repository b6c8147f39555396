"""The arrays behind variables: who may hold them, and who may overwrite them.

Compiled steps overwrite the arrays of the variables they assign, in place. So each variable knows
whether its array was handed out, and gives a step a copy of one that was.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .._jax_compat import outside_traces
from ..errors import DeadlineExceededError, FailedPreconditionError

# Held while a step takes the arrays it overwrites, is started, and stores the new ones: in between
# nobody may get hold of an array that is about to be gone.
STORAGE_LOCK = threading.RLock()
_LOCK_TIMEOUT = 60.0
_serials = itertools.count()


def next_serial() -> int:
    """Return the `serial` of the variable that is created next, or one below it."""
    return next(_serials)


class Stored:
    """An array on one device or several, which stays what it is for those who were given it."""

    # Whether each replica has a value of its own; then `stored_shape` has a leading replica axis.
    differs_between_replicas = False

    # The devices it lives on; None where no strategy chose them.
    topology: Any = None

    def __init__(self, data: jax.Array, device: jax.Device | None = None) -> None:
        self._device = device
        with jax.ensure_compile_time_eval():  # the variable may be created inside a trace
            self._data: jax.Array = self._place(data)
        self.serial = next(_serials)  # in the order of creation
        self._shared = False
        self._refs: dict[bool, Any] = {}  # for foreign traces; on all devices or not

    def copy_storage(self, other: Stored) -> None:
        """Start with a copy of what another one holds."""
        with jax.ensure_compile_time_eval():
            self._data = jnp.copy(other._data)
        self.serial = next(_serials)
        self._shared, self._refs = False, {}

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the array that holds all copies."""
        return self._data.shape

    def load(self) -> jax.Array:
        """Return the stored array, for reading only."""
        return self._data

    def share(self) -> jax.Array:
        """Return the stored array to somebody who may keep it.

        Raises:
          DeadlineExceededError: when a step in another thread does not let go of the variable.
        """
        if not STORAGE_LOCK.acquire(timeout=_LOCK_TIMEOUT):
            raise DeadlineExceededError(
                f"A variable of shape {self._data.shape} could not be read for {_LOCK_TIMEOUT} s, "
                "as a step that updates variables is being started in another thread. If this is a "
                "callback inside that step, pass it the values it needs instead."
            )
        try:
            self._check_alive()
            self._shared = True
            return self._data
        finally:
            STORAGE_LOCK.release()

    def share_all(self, variables: Sequence[Any]) -> list[Any]:
        """Return the arrays of several variables like this one."""
        return [variable.share() for variable in variables]

    def carry_out(self, effects: Sequence[Any]) -> None:
        """Have something done to this and other variables that live elsewhere.

        Raises:
          TypeError: here, as this one does not.
        """
        raise TypeError(f"{self!r} lives in this process, and is written rather than told to.")

    def take_over(self) -> jax.Array:
        """Return the stored array to a program that will overwrite it."""
        self._check_alive()
        if self._shared:
            self._data, self._shared = jnp.copy(self._data), False
        return self._data

    def store(self, data: jax.Array, shared: bool = False) -> None:
        """Replace the stored array; `shared` when others may hold it as well."""
        with STORAGE_LOCK:
            self._data, self._shared = self._place(data), shared
        self._refresh_refs()

    def store_output(self, data: jax.Array) -> None:
        """Replace the stored array by an output of a compiled program, which is in place."""
        self._data, self._shared = data, False
        self._refresh_refs()

    def _check_alive(self) -> None:
        if not isinstance(self._data, Tracer) and self._data.is_deleted():
            raise FailedPreconditionError(
                f"A variable of shape {self._data.shape} has no value any more: the step that was "
                "to assign it failed after it had begun to overwrite it, as happens when a worker "
                "is lost. Restore it from a checkpoint."
            )

    def component_data(self, index: int) -> jax.Array:
        """Return the copy of one local replica."""
        return self._data

    def join_components(self, components: list[jax.Array]) -> jax.Array:
        """Return the stored form of what the replicas hold, each of its own copy."""
        return components[0]

    def read_in_foreign_trace(self, on_all_devices: bool = False) -> Any:
        """Return the value inside a `jax.jit` or the like that knows nothing of variables.

        A plain array would be baked into the program as it was at trace time. A `jax.Ref` is
        looked up each time the program runs, so it sees later assignments.

        Args:
          on_all_devices: return the stored array rather than the value on one device.
        """
        if on_all_devices not in self._refs:
            data = outside_traces(lambda: self._data if on_all_devices else self._whole())
            self._refs[on_all_devices] = outside_traces(lambda: jax.new_ref(data))
        return self._refs[on_all_devices][...]

    def _refresh_refs(self) -> None:
        for on_all_devices, ref in self._refs.items():
            ref[...] = self._data if on_all_devices else self._whole()

    def _whole(self) -> jax.Array:
        """Return the stored value, combined over replicas, on one device."""
        return self._data

    def first_device(self) -> jax.Device:
        """Return the device of the first copy."""
        return next(iter(self._data.devices()))

    def _place(self, data: jax.Array) -> jax.Array:
        if self._device is not None:
            return jax.device_put(data, self._device)
        if len(data.devices()) > 1:  # an output of a program that ran on several devices
            return data.addressable_data(0)
        return data
