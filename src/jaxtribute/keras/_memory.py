"""Variables that are too large for the devices of a strategy are refused before they are made."""

from __future__ import annotations

from typing import Any

import jax

from .. import _host_memory
from .._host_memory import gibibytes
from ..errors import ResourceExhaustedError
from ..strategies import ParameterServerStrategy

_SMALL = 1 << 24  # bytes; looking at the memory for less would take longer than it is worth


def check_fits(strategy: Any, size: int, what: str) -> None:
    """Refuse a variable that does not fit into the memory that is left.

    Args:
      strategy: the strategy that is to keep it.
      size: how many bytes it has.
      what: what it is, for the message.

    Raises:
      ResourceExhaustedError: when it does not fit.
    """
    # On servers it is divided, and their memory is not known here.
    if size < _SMALL or isinstance(strategy, ParameterServerStrategy):
        return
    devices = strategy.topology.local_devices
    for device in devices:
        # Devices of the CPU have their memory in common.
        copies = len(devices) if device.platform == "cpu" else 1
        left = memory_left(device)
        if left is not None and size * copies > left:
            times = f", {copies} times" if copies > 1 else ""
            raise ResourceExhaustedError(
                f"{what} has {gibibytes(size)}, which {strategy!r} keeps on each of its "
                f"devices{times}, and {device} has {gibibytes(left)} left. Make the model "
                "smaller, use keras.config.set_dtype_policy('bfloat16'), fewer replicas on one "
                "machine, or a ParameterServerStrategy with a variable_partitioner, which divides "
                "large variables between servers."
            )


def memory_left(device: jax.Device) -> int | None:
    """Return how many bytes a device can still take, if it is known."""
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        limit = stats.get("bytes_limit")
        return None if limit is None else limit - stats.get("bytes_in_use", 0)
    return _host_memory.available()
