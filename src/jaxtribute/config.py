"""Settings of the whole process."""

from __future__ import annotations

from ._devices import set_logical_cpu_devices

__all__ = ["functions_run_eagerly", "run_functions_eagerly", "set_logical_cpu_devices"]

_run_eagerly = False


def run_functions_eagerly(run_eagerly: bool) -> None:
    """Make every `jt.function` run as plain Python, for debugging.

    >>> jt.config.run_functions_eagerly(True)
    >>> jt.config.functions_run_eagerly()
    True
    >>> jt.config.run_functions_eagerly(False)

    Args:
      run_eagerly: whether to run as Python; False compiles again.
    """
    global _run_eagerly
    _run_eagerly = run_eagerly


def functions_run_eagerly() -> bool:
    """Tell whether `jt.function` runs as plain Python.

    >>> jt.config.functions_run_eagerly()
    False
    """
    return _run_eagerly
