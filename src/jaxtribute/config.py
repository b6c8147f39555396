"""Settings of the whole process."""

from __future__ import annotations

from ._devices import set_logical_cpu_devices

__all__ = [
    "check_ids_in_functions",
    "functions_check_ids",
    "functions_run_eagerly",
    "run_functions_eagerly",
    "set_logical_cpu_devices",
]

_run_eagerly = False
_check_ids = False


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


def check_ids_in_functions(check_ids: bool) -> None:
    """Make every `jt.function` raise when it meets an id of a row that does not exist.

    Ids that are known are refused anyway. Those that a compiled function computes, or is given, are
    known only while it runs: by default rows out of range are not written, and read as NaN. With
    this setting, `scatter_*`, lookups and what optimizers do to rows make the call raise
    `InvalidArgumentError`, and the variables stay what they were. It waits for each step to end,
    and keeps a copy of what the step changes. Each process has the setting for itself; workers that
    run steps together need the same.

    >>> v = jt.Variable([1.0, 2.0, 3.0], name="v")
    >>> @jt.function
    ... def step(indices):
    ...     v.scatter_add(jt.IndexedSlices(jnp.ones(1), indices))
    >>> jt.config.check_ids_in_functions(True)
    >>> step(jnp.array([-1]))
    Traceback (most recent call last):
    ...
    jaxtribute.errors.InvalidArgumentError: The variable 'v' has 3 rows, ... asked for -1.
    >>> jt.config.check_ids_in_functions(False)

    Args:
      check_ids: whether to look at ids; functions are traced anew when it changes.
    """
    global _check_ids
    _check_ids = check_ids


def functions_check_ids() -> bool:
    """Tell whether `jt.function` looks at ids of rows while it runs.

    >>> jt.config.functions_check_ids()
    False
    """
    return _check_ids
