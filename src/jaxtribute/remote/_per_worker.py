"""Variables of which each worker has its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import _current
from ._variable import Described, RemoteVariable

__all__ = ["PerWorkerVariable"]


class PerWorkerVariable:
    """A variable for each worker; a scheduled function has that of the worker it runs on.

    Made by `jt.Variable(..., per_worker_variable=True)` in the scope of a
    `ParameterServerStrategy`. The values are on parameter servers, so they outlive the workers.

    >>> with jt.testing.LocalCluster(workers=2, ps=1) as cluster:
    ...     strategy = cluster.strategy()
    ...     coordinator = cluster.coordinator(strategy)
    ...     with strategy.scope():
    ...         steps = jt.Variable(0, per_worker_variable=True)
    ...     for _ in range(10):
    ...         _ = coordinator.schedule(lambda: steps.assign_add(1))
    ...     coordinator.join()
    ...     print(sum(steps.read_all()))
    10
    """

    def __init__(self, variables: Sequence[RemoteVariable]) -> None:
        self._variables = tuple(variables)

    @property
    def variables(self) -> tuple[RemoteVariable, ...]:
        """The variable of each worker, in their order."""
        return self._variables

    @property
    def name(self) -> str:
        """The name, which all have in common."""
        return self._variables[0].name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each value."""
        return self._variables[0].shape

    @property
    def dtype(self) -> Any:
        """The type of the elements."""
        return self._variables[0].dtype

    def read_all(self) -> list[np.ndarray[Any, Any]]:
        """Return the value of each worker, in their order."""
        return [variable.numpy() for variable in self._variables]

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, ([variable.described for variable in self._variables],)

    def __repr__(self) -> str:
        return f"<PerWorkerVariable {self.name!r} of {len(self._variables)} workers>"


def _arrived(described: Sequence[Described]) -> RemoteVariable:
    """Return the variable of the worker that this was sent to."""
    session = _current.session(f"the variable {described[0].name!r}")
    return session.variable(described[session.strategy.worker])
