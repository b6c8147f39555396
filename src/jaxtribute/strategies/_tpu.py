"""Synchronous training on TPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from .. import _devices
from ._mirrored import MirroredStrategy

__all__ = ["ExperimentalTPUStrategy", "TPUStrategy"]


class TPUStrategy(MirroredStrategy):
    """Trains on the TPU cores of this process, as `MirroredStrategy` does on other devices.

    >>> jt.TPUStrategy()
    Traceback (most recent call last):
        ...
    RuntimeError: TPUStrategy needs TPUs, and this process has only CPU devices. ...

    Args:
      tpu_cluster_resolver: where the TPUs are; kept as `cluster_resolver`. JAX finds local TPUs
        by itself.
      experimental_device_assignment: the TPU devices to use, one a replica; by default all.
      experimental_spmd_xla_partitioning: accepted for compatibility; steps are always compiled
        as one program for all devices.

    Raises:
      RuntimeError: when there are no TPUs.
      ValueError: when a device is none.
    """

    _platform = "tpu"

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        experimental_device_assignment: Sequence[str | jax.Device] | None = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        self._cluster_resolver = tpu_cluster_resolver
        super().__init__(experimental_device_assignment)

    @property
    def cluster_resolver(self) -> Any | None:
        """The resolver that was given."""
        return self._cluster_resolver

    def _resolve(self, devices: Sequence[str | jax.Device] | None) -> list[jax.Device]:
        present = [d for d in _devices.all_local_devices() if d.platform == self._platform]
        if not present:
            kinds = sorted({d.platform.upper() for d in _devices.all_local_devices()})
            raise RuntimeError(
                f"{type(self).__name__} needs {self._platform.upper()}s, and this process has only "
                f"{', '.join(kinds)} devices. Use jt.MirroredStrategy(), which takes what there is."
            )
        chosen = present if devices is None else super()._resolve(devices)
        others = [_devices.canonical_name(d) for d in chosen if d.platform != self._platform]
        if others:
            raise ValueError(f"{others} are not {self._platform.upper()} devices.")
        return chosen


class ExperimentalTPUStrategy(TPUStrategy):
    """`TPUStrategy` with the arguments it had while it was experimental.

    >>> jt.experimental.TPUStrategy()
    Traceback (most recent call last):
        ...
    RuntimeError: TPUStrategy needs TPUs, and this process has only CPU devices. ...

    Args:
      tpu_cluster_resolver: where the TPUs are; kept as `cluster_resolver`.
      device_assignment: the TPU devices to use, one a replica; by default all.

    Raises:
      RuntimeError: when there are no TPUs.
      ValueError: when a device is none.
    """

    def __init__(
        self,
        tpu_cluster_resolver: Any = None,
        device_assignment: Sequence[str | jax.Device] | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)


ExperimentalTPUStrategy.__name__ = ExperimentalTPUStrategy.__qualname__ = "TPUStrategy"
