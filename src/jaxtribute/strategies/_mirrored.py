"""Synchronous training on several devices of one process."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

import jax

from .. import _devices
from .._topology import Topology
from ..collectives import CrossDeviceOps, NcclAllReduce
from ._replicated import ReplicatedStrategy

__all__ = ["MirroredStrategy"]

_log = logging.getLogger("jaxtribute")


class MirroredStrategy(ReplicatedStrategy):
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
