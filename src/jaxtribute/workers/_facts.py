"""What workers compare before they begin, so that a difference is named and not suffered."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import jax

from .._version import __version__
from ..errors import FailedPreconditionError

_NOT_COMPARED = "process"
_REMEDIES = {
    "jaxtribute": "Install the same version of jaxtribute everywhere.",
    "jax": "Install the same version of JAX everywhere.",
    "jaxlib": "Install the same version of jaxlib everywhere.",
    "cluster": "Give all tasks the same cluster in TF_CONFIG; only their `task` differs.",
    "options": "Create the strategy with the same communication options everywhere.",
    "devices": "Give all workers equally many devices of one kind.",
}


def own_facts(cluster: str, options: str) -> dict[str, Any]:
    """Return what this process knows of itself before JAX has started."""
    return {
        "jaxtribute": __version__,
        "jax": jax.__version__,
        "jaxlib": version("jaxlib"),
        "cluster": cluster,
        "options": options,
        _NOT_COMPARED: f"process {os.getpid()} on {socket.gethostname()} ({platform.system()})",
    }


def differences(tasks: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> str | None:
    """Return who differs from the chief in what, and what to do; None if nobody does."""
    lines: list[str] = []
    for name in facts[0]:
        values = [str(own.get(name)) for own in facts]
        if name == _NOT_COMPARED or len(set(values)) == 1:
            continue
        others = [
            f"{task} has {value}"
            for task, value in zip(tasks, values, strict=True)
            if value != values[0]
        ]
        remedy = _REMEDIES.get(name, "")
        lines.append(f"{name}: {tasks[0]} has {values[0]}, {', '.join(others)}. {remedy}".strip())
    return "\n".join(lines) or None


def differing(found: str) -> FailedPreconditionError:
    """Return the error for differences that were found."""
    return FailedPreconditionError(f"The workers differ, and cannot train together:\n{found}")
