"""One replica, on one device that is named."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from .. import _context, _devices
from .._options import ValueContext
from .._topology import Topology
from ..collectives import ReductionToOneDevice
from ..values._regroup import check_numbers
from ..variables import Variable, _frames
from ..variables._spec import VariableSpec
from ._base import Strategy
from ._exchange import on_device
from ._replica_context import ReplicaContext

__all__ = ["OneDeviceStrategy"]


class OneDeviceStrategy(Strategy):
    """Places everything on one device; useful to try out code meant for several.

    >>> strategy = jt.OneDeviceStrategy("CPU:0")
    >>> with strategy.scope():
    ...     v = jt.Variable(1.0)
    >>> v.device
    '/job:localhost/replica:0/task:0/device:CPU:0'
    >>> strategy.run(lambda: v * 2)
    Array(2., dtype=float32)

    Args:
      device: a `jax.Device` or the name of one, such as "GPU:0".

    Raises:
      ValueError: when there is no such device.
    """

    def __init__(self, device: str | jax.Device) -> None:
        super().__init__(Topology([_devices.resolve(device)]), ReductionToOneDevice())

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        _frames.current().touch(self.topology)
        return run_alone(self, fn, args, kwargs)

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        with _context.cross_replica(self, "experimental_distribute_values_from_function"):
            value = value_fn(ValueContext())
            check_numbers(value, "experimental_distribute_values_from_function")
            return on_device(value, self.topology.devices[0])

    def _create_variable(self, spec: VariableSpec) -> Variable:
        return _OwnedVariable(spec, self)


def run_alone(
    strategy: Strategy, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function as the only replica of a strategy, on its one device."""
    check_numbers((args, kwargs), "A replica")
    (device,) = strategy.topology.devices
    args, kwargs = on_device(strategy.experimental_local_results((args, kwargs))[0], device)
    with (
        jax.default_device(device),
        _context.opened(_context.Side(strategy, ReplicaContext(strategy, 0))),
        _frames.all_or_nothing(),
    ):
        return fn(*args, **kwargs)


class _OwnedVariable(Variable):
    """A plain variable that knows the strategy it was created in."""

    def __init__(self, spec: VariableSpec, strategy: OneDeviceStrategy) -> None:
        self._strategy = strategy
        self.topology = strategy.topology
        super().__init__(spec)

    @property
    def distribute_strategy(self) -> OneDeviceStrategy:
        return self._strategy

    def value(self) -> jax.Array:
        with _context.accessing(self._strategy, f"the variable {self.name!r}"):
            _frames.current().touch(self._strategy.topology)
            return super().value()

    def _place(self, data: jax.Array) -> jax.Array:
        return self._strategy.topology.replicate(data)

    def _update(self, combine: Any, value: Any) -> Any:
        with _context.accessing(self._strategy, f"the variable {self.name!r}"):
            return super()._update(combine, value)
