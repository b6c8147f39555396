"""How many threads a process with a share of a machine's cores should use.

What is returned are environment variables, which libraries read when they start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

__all__ = ["CHOSEN", "requested_cpu_devices", "thread_variables", "thread_variables_apart"]

CHOSEN = "JAXTRIBUTE_PJRT_NPROC"  # equals PJRT_NPROC where that was not set by the user
_THREADS_A_DEVICE = 4  # XLA's CPU collectives need two; the rest is for the next step


def thread_variables(share: int, devices: int) -> dict[str, str]:
    """Return the variables for a process with so many cores and CPU devices, and collectives."""
    # A collective holds one thread of the pool for each device until all have come, so a pool
    # about as small as the number of devices deadlocks.
    pool = max(share, _THREADS_A_DEVICE * devices)
    libraries = dict.fromkeys(
        ["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], str(share)
    )
    return {**_pool_of(pool), **libraries}


def thread_variables_apart(share: int, devices: int) -> dict[str, str]:
    """Return the variables for a process that has no collectives with others."""
    threads = thread_variables(share, devices)
    # A single device has nobody to wait for, and more threads than cores only take turns.
    return threads if devices > 1 else threads | _pool_of(share)


def _pool_of(size: int) -> dict[str, str]:
    return {"PJRT_NPROC": str(size), CHOSEN: str(size)}


def requested_cpu_devices(environment: Mapping[str, str]) -> int:
    """Return how many CPU devices JAX will create, as far as the environment tells."""
    configured = environment.get("JAX_NUM_CPU_DEVICES", "")
    if configured.isdecimal():
        return max(1, int(configured))
    flags = environment.get("XLA_FLAGS", "")
    forced = re.search(r"--xla_force_host_platform_device_count=(\d+)", flags)
    return int(forced[1]) if forced else 1
