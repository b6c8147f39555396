"""Synchronous training on several devices of one process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import _context, _devices, config
from .._jax_compat import is_tracing
from .._reduce import VariableSynchronization
from .._topology import Topology
from ..collectives import CrossDeviceOps, NcclAllReduce
from ..tracing import Function
from ..variables import MirroredVariable, SyncOnReadVariable, Variable
from ..variables._spec import VariableSpec
from ._base import Strategy
from ._eager import run_eagerly
from ._spmd import run_spmd

__all__ = ["MirroredStrategy"]

_log = logging.getLogger("jaxtribute")


class MirroredStrategy(Strategy):
    """Trains on every local device: variables are copied to each, and kept equal.

    >>> strategy = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    >>> with strategy.scope():
    ...     x = jt.Variable(1.0)
    >>> x
    MirroredVariable:{
      0: <jt.Variable 'Variable:0' shape=() dtype=float32, numpy=1.0>,
      1: <jt.Variable 'Variable/replica_1:0' shape=() dtype=float32, numpy=1.0>
    }

    Args:
      devices: devices or their names, such as `["GPU:0", "GPU:1"]`, one a replica; by default all
        accelerators, or all CPU devices where there are none.
      cross_device_ops: how values are combined over devices; by default `NcclAllReduce()`.

    Raises:
      ValueError: when a device does not exist, or `cross_device_ops` is something else.
      AssertionError: when a device is named twice.
      RuntimeError: when a device belongs to another task, or JAX was started with too few threads
        for its CPU devices.
    """

    def __init__(
        self,
        devices: Sequence[str | jax.Device] | None = None,
        cross_device_ops: CrossDeviceOps | None = None,
    ) -> None:
        if cross_device_ops is not None and not isinstance(cross_device_ops, CrossDeviceOps):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(
                f"cross_device_ops must be a jt.CrossDeviceOps, such as jt.NcclAllReduce(), got "
                f"{cross_device_ops!r}."
            )
        if "TF_CONFIG" in os.environ:
            _log.info("%s uses local devices only and ignores TF_CONFIG.", type(self).__name__)
        resolved = self._resolve(devices)
        if len(set(resolved)) != len(resolved):
            raise AssertionError(f"No duplicates allowed in devices, got {devices!r}.")
        _devices.check_cpu_threads(resolved)
        super().__init__(Topology(resolved), cross_device_ops or NcclAllReduce())

    def _resolve(self, devices: Sequence[str | jax.Device] | None) -> list[jax.Device]:
        if devices is None:
            return _devices.default_devices()
        if isinstance(devices, str) or not devices:
            raise ValueError(
                f"devices must be a list with at least one device, such as ['GPU:0', 'GPU:1'], got "
                f"{devices!r}."
            )
        return _devices.resolve_all(devices)

    def _run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_tracing():
            return run_spmd(self, fn, args, kwargs)
        if isinstance(fn, Function) and not config.functions_run_eagerly():
            return fn.run_under(self, args, kwargs)
        return run_eagerly(self, fn, args, kwargs)

    def create_variable(self, **spec: Any) -> Variable:
        context = _context.get_replica_context()
        if context is None:
            return super().create_variable(**spec)
        # All replicas ask for the variable at the same time, and share the one that is made.
        name = spec.get("name")
        return context.merge_call(
            lambda strategy, initial_value: strategy.create_variable(
                **(spec | {"initial_value": initial_value, "name": name})
            ),
            args=(spec.get("initial_value"),),
        )

    def _create_variable(self, spec: VariableSpec) -> Variable:
        if spec.synchronization is VariableSynchronization.NONE:
            raise ValueError(
                f"The variable {spec.name!r} was asked for with VariableSynchronization.NONE, "
                f"which {type(self).__name__} does not have: use AUTO, ON_WRITE or ON_READ, or "
                "create it outside the scope."
            )
        if spec.synchronization is VariableSynchronization.ON_READ:
            return SyncOnReadVariable(spec, self, self.topology)
        return MirroredVariable(spec, self, self.topology)
