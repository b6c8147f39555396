"""The library Ray, which this package needs when it is used, not when it is imported."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import FailedPreconditionError

__all__ = ["connected_ray"]


def connected_ray() -> Any:
    """Return the module `ray`, of a program that is connected to a cluster.

    Raises:
      ImportError: when Ray is not installed.
      FailedPreconditionError: when the program is not connected.
    """
    try:
        ray = importlib.import_module("ray")
    except ImportError as error:
        raise ImportError("jt.ray needs Ray: pip install 'jaxtribute[ray]'") from error
    if not ray.is_initialized():
        # Ray would start a cluster on this machine by itself, which is rarely what was meant.
        raise FailedPreconditionError(
            "This program is not connected to a Ray cluster. Call ray.init(address='auto') on a "
            "machine of the cluster first, or ray.init() for one on this machine alone."
        )
    return ray
