"""The arrays behind variables: who may hold them, and who may overwrite them.

Compiled steps overwrite the arrays of the variables they assign, in place. So each variable knows
whether its array was handed out, and gives a step a copy of one that was.

Ctrl-C can be raised between any two instructions of Python, also between a step that has
overwritten arrays and the store of what it made of them. So what a step has made is put where it
cannot be lost by the same call that runs it, and stored by whoever comes next.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from .._jax_compat import outside_traces
from ..errors import DeadlineExceededError, FailedPreconditionError
from ._copies import copied

# Held while a step takes the arrays it overwrites, is started, and stores the new ones: in between
# nobody may get hold of an array that is about to be gone.
STORAGE_LOCK = threading.RLock()
_LOCK_TIMEOUT = 60.0
_serials = itertools.count()


def next_serial() -> int:
    """Return the `serial` of the variable that is created next, or one below it."""
    return next(_serials)


# What programs have made, with the function that stores it; all but empty most of the time.
_unsettled: list[tuple[Callable[[Any], None], Any]] = []


def overwrite(
    program: Callable[..., Any], args: Sequence[Any], store: Callable[[Any], None]
) -> Any:
    """Run a program that overwrites arrays, store what it returns, and return that.

    Called with `STORAGE_LOCK` held.

    Args:
      program: what to run.
      args: its arguments.
      store: stores what it returns. It may be called again, when it was interrupted.
    """
    # One call, into C: it is interrupted before, when nothing has happened, or after it.
    made = map(program, *((arg,) for arg in args))
    _unsettled.extend(zip((store,), made, strict=False))
    outputs = _unsettled[-1][1]
    settle()
    return outputs


def settle() -> None:
    """Store what programs have made, if an interrupt has kept somebody from that."""
    with STORAGE_LOCK:
        if _settling.is_under_way:  # and reads what it has stored
            return
        _settling.is_under_way = True
        try:
            for store, outputs in _unsettled:
                store(outputs)
            _unsettled.clear()
        finally:
            _settling.is_under_way = False


class _Settling:
    is_under_way = False


_settling = _Settling()


class LostValueError(FailedPreconditionError):
    """A variable has no value any more, and can only be given a new one."""


class Stored:
    """An array on one device or several, which stays what it is for those who were given it."""

    # Whether each replica has a value of its own; then `stored_shape` has a leading replica axis.
    differs_between_replicas = False

    # The devices it lives on; None where no strategy chose them.
    topology: Any = None

    _blank: jax.Array | None = None  # what is stored until the initial value is computed

    def __init__(self, data: jax.Array, device: jax.Device | None = None) -> None:
        self._device = device
        self._array: jax.Array
        with jax.ensure_compile_time_eval():  # the variable may be created inside a trace
            if isinstance(data, Tracer):
                self._array = self._blank = self._place(jnp.zeros(data.shape, data.dtype))
                self._blank.delete()
            else:
                self._array = self._place(data)
        self.serial = next(_serials)  # in the order of creation
        self._shared = False
        self._refs: dict[bool, Any] = {}  # for foreign traces; on all devices or not

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return "Variable"

    @property
    def _data(self) -> jax.Array:
        if _unsettled:
            settle()
        return self._array

    def copy_storage(self, other: Stored) -> None:
        """Start with a copy of what another one holds."""
        with jax.ensure_compile_time_eval():
            self._array = copied(other.load())
        self.serial = next(_serials)
        self._shared, self._refs = False, {}

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the array that holds all copies."""
        return self._data.shape

    def load(self) -> jax.Array:
        """Return the stored array, for reading only.

        Raises:
          FailedPreconditionError: when it is lost.
        """
        data = self._data
        self._check_alive()
        return data

    def share(self) -> jax.Array:
        """Return the stored array to somebody who may keep it.

        Raises:
          DeadlineExceededError: when a step in another thread does not let go of the variable.
          FailedPreconditionError: when the value is lost.
        """
        if not STORAGE_LOCK.acquire(timeout=_LOCK_TIMEOUT):
            raise DeadlineExceededError(
                f"The variable {self.name!r} of shape {self._array.shape} could not be read for "
                f"{_LOCK_TIMEOUT} s, as a step that updates variables is being started in another "
                "thread. If this is a callback inside that step, pass it the values it needs "
                "instead."
            )
        try:
            data = self.load()
            self._shared = True
            return data
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
        """Return the stored array to a program that will overwrite it.

        Raises:
          FailedPreconditionError: when it is lost.
        """
        data = self.load()
        if self._shared:
            self._array, self._shared = copied(data), False
        return self._array

    def store(self, data: jax.Array, shared: bool = False) -> None:
        """Replace the stored array; `shared` when others may hold it as well."""
        with STORAGE_LOCK:
            settle()
            self.store_output(self._place(data), shared)

    def store_output(self, data: jax.Array, shared: bool = False) -> None:
        """Replace the stored array by one that is in place, such as an output of a program."""
        self._array, self._shared = data, shared
        self._refresh_refs()

    def store_foreign(self, data: jax.Array) -> None:
        """Replace the stored array by an output of a program for other devices."""
        self.store_output(self._place(data))

    def remember(self) -> Callable[[], None]:
        """Return a function that puts back what is stored now, be it lost."""
        try:
            data = self.share()
        except LostValueError:
            data = self._array
        return lambda: self._put_back(data)

    def _put_back(self, data: jax.Array) -> None:
        with STORAGE_LOCK:
            settle()
            self._array, self._shared = data, True
        if not self.is_lost:
            self._refresh_refs()

    @property
    def is_lost(self) -> bool:
        """Whether there is no value any more."""
        data = self._data
        return not isinstance(data, Tracer) and (
            _is_gone(data) if self._shared else data.is_deleted()
        )

    @property
    def has_no_value_yet(self) -> bool:
        """Whether the program that computes the initial value has not run."""
        return self._blank is not None and self._blank is self._data

    def blank(self) -> jax.Array:
        """Return zeros where the stored array is, for a program that does not look at them."""
        return jax.device_put(jnp.zeros(self.stored_shape, self._array.dtype), self._array.sharding)

    def _check_alive(self) -> None:
        if not self.is_lost:
            return
        if self.has_no_value_yet:
            raise LostValueError(
                f"The variable {self.name!r} of shape {self._data.shape} has no value yet: the "
                "jt.function that created it was to compute its initial value, and did not get "
                "that far. It can be assigned, or restored from a checkpoint; or create it again."
            )
        if self._shared:  # which no step of ours overwrites
            raise LostValueError(
                f"The variable {self.name!r} of shape {self._data.shape} has no value any more: "
                "its array was returned by `value()`, or the like, to code that has deleted it, "
                "most likely by giving it to a function compiled with jax.jit(..., "
                "donate_argnums=...). Give it a copy, jnp.copy(variable.value()). The variable can "
                "be assigned, or restored from a checkpoint."
            )
        raise LostValueError(
            f"The variable {self.name!r} of shape {self._data.shape} has no value any more: the "
            "step that was to assign it failed after it had begun to overwrite it, as happens "
            "when a worker is lost. It can be assigned, or restored from a checkpoint."
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
        return min(self._array.sharding.device_set, key=lambda device: device.id)

    def _place(self, data: jax.Array) -> jax.Array:
        if self._device is not None:
            return jax.device_put(data, self._device)
        if len(data.devices()) > 1:  # an output of a program that ran on several devices
            return data.addressable_data(0)
        return data


def _is_gone(data: jax.Array) -> bool:
    """Tell whether any part of an array is gone: JAX looks at the first only."""
    if data.is_deleted():
        return True
    return len(data.sharding.device_set) > 1 and any(
        shard.data.is_deleted() for shard in data.addressable_shards
    )
