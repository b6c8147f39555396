"""Functions of Python that a compiled program calls while it runs, and that may raise.

XLA ends the program on the device whose callback raised, and lets the others wait in the next
collective, until it aborts the process. And the outputs of that device are errors, with which the
next program would do the same. So what a callback raises is kept here, the callback returns zeros,
the program runs to its end on all devices, and the error is raised instead of its outcome. Such a
program does not overwrite the arrays it is given, so that variables keep what they were.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from .. import errors
from .._jax_compat import with_callbacks
from .._topology import Topology
from ..errors import AbortedError, JaxtributeError


class Guard:
    """Runs a program that calls back, and raises what was raised there.

    Args:
      name: of the program, for messages.
      topology: the devices it runs on, if a strategy chose them.
    """

    def __init__(self, name: str, topology: Topology | None) -> None:
        self._name = name
        self._topology = topology
        self._errors: list[BaseException] = []

    def guarded(self, jaxpr: Any) -> Any:
        """Return a traced program, in which nothing is raised."""
        return with_callbacks(jaxpr, self._guarded)

    def carry_out(self, program: Callable[..., Any], *args: Any) -> Any:
        """Run the compiled program, and wait until it is done.

        Raises:
          JaxRuntimeError: with what a callback raised.
        """
        self._errors.clear()
        outputs = jax.block_until_ready(program(*args))
        if not jax.tree.leaves(outputs):
            jax.effects_barrier()
        return outputs

    def check(self, meets_workers: bool) -> None:
        """Raise what a callback raised, on all workers if it was on one.

        Raises:
          JaxtributeError: when one of this library raised it, such as for ids out of range.
          JaxRuntimeError: with what another callback raised here.
          AbortedError: when one raised on another worker.
        """
        error = next(iter(self._errors), None)
        self._errors.clear()
        reports = [""]
        if meets_workers and self._topology is not None:
            group = self._topology.group
            own = "" if error is None else f"{group.tasks[group.index]}: {_in_short(error)}"
            own = own and f"{type(error).__name__} {own}"
            reports = group.agree("callbacks of a step", own)
        if error is not None:
            if isinstance(error, JaxtributeError) or not isinstance(error, Exception):
                raise error
            what = f"A callback failed in {self._name!r}, which has changed nothing"
            details = "".join(traceback.format_exception(error))
            raise jax.errors.JaxRuntimeError(f"{what}: {_in_short(error)}\n{details}") from error
        for report in filter(None, reports):
            name, _, text = report.partition(" ")
            kind = getattr(errors, name, AbortedError)  # the same, if it is one of this library
            raise kind(
                f"A callback failed in {self._name!r} on another worker, and the step has changed "
                f"nothing: {text}"
            )

    def _guarded(self, callback: Callable[..., Any], results: Sequence[Any]) -> Callable[..., Any]:
        def guarded(*args: Any) -> Sequence[Any]:
            try:
                return _checked(callback(*args), results)
            except BaseException as error:
                self._errors.append(error)
                return [np.zeros(result.shape, result.dtype) for result in results]

        return guarded


def _checked(returned: Any, results: Sequence[Any]) -> Sequence[Any]:
    """Return what a callback returned, if it is what was announced."""
    arrays = [np.asarray(leaf) for leaf in returned]
    found = [(array.shape, jax.dtypes.canonicalize_dtype(array.dtype)) for array in arrays]
    announced = [(result.shape, result.dtype) for result in results]
    if found != announced:
        raise ValueError(
            "A callback returned arrays of other shapes or types than were announced: "
            f"{_described(found)} instead of {_described(announced)}."
        )
    return arrays


def _described(types: Sequence[tuple[Any, Any]]) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in types) or "none"


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
