"""Variables while a worker runs a scheduled function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from .._jax_compat import is_staging
from ..variables import Variable, _frames
from ..variables._effects import Effect

if TYPE_CHECKING:
    from ._session import Session


class ClosureFrame(_frames.Frame):
    """What a closure reads from parameter servers, and what it will have done to them.

    Nothing is sent before the closure is over. So one that fails, or whose worker is lost, changes
    nothing, and each server gets all of its updates at once.
    """

    has_own_values = False  # not before it has something done to a variable

    def __init__(self, session: Session) -> None:
        super().__init__(_frames.STORAGE)
        self._session = session
        self.programs_read: dict[int, Variable] = {}  # what compiled functions need each time

    def load(self, variable: Variable) -> Any:
        if not variable.is_remote:
            return self.parent.read(variable)
        return jnp.asarray(self._session.read([variable])[0])

    def read(self, variable: Variable) -> Any:
        if is_staging() and not self.effects:  # what is remembered is asked for at each run
            return self.parent.read(variable)
        return super().read(variable)

    def record(self, effects: Sequence[Effect]) -> None:
        super().record(effects)
        self.take_own_cache()

    def read_all(self, variables: Sequence[Variable]) -> list[Any]:
        if not variables:
            return []
        self.programs_read.update((id(variable), variable) for variable in variables)
        values = self._session.read_cached(variables)
        if not self.effects:
            return values
        return [self.with_effects(v, value) for v, value in zip(variables, values, strict=True)]

    def before(self, variables: Sequence[Variable]) -> list[Any]:
        return super().before(variables) if is_staging() else self._session.read_cached(variables)

    def write(self, variable: Variable, value: Any) -> None:
        self.parent.write(variable, value)  # one of this process
