"""Reading variables that live elsewhere once."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._jax_compat import trace_in_progress
from . import _frames
from ._effects import Effect

if TYPE_CHECKING:
    from ._base import Variable


@contextmanager
def cached_reads() -> Generator[None]:
    """Have variables that live elsewhere keep, while the block runs, the value first read.

    Raises:
      ValueError: inside another such block.
    """
    if any(isinstance(frame, _CachingFrame) for frame in _frames.opened_here()):
        raise ValueError(
            "Reads of variables are cached already: a block that caches them is inside another. "
            "Leave out the inner one."
        )
    with _frames.opened(_CachingFrame(_frames.current())):
        yield


class _CachingFrame(_frames.Frame):
    """Variables that live elsewhere are read once, and keep the value they had then."""

    def __init__(self, parent: _frames.Frame) -> None:
        self.parent = parent
        self._trace = trace_in_progress()
        self._read: dict[int, tuple[Variable, Any]] = {}
        self.local = parent.local  # pyright: ignore[reportIncompatibleVariableOverride]

    @property
    def effects(self) -> list[Effect]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.parent.effects

    def read(self, variable: Variable) -> Any:
        if not variable.is_remote:
            return self.parent.read(variable)
        return self._lent(variable, self.read_all([variable])[0])

    def read_all(self, variables: Sequence[Variable]) -> list[Any]:
        missing = [v for v in variables if id(v) not in self._read]
        for variable, value in zip(missing, self.parent.read_all(missing), strict=True):
            self._read[id(variable)] = variable, value
        return [self._read[id(variable)][1] for variable in variables]

    def read_for_replicas(self, variable: Variable) -> Any:
        key = id(variable)
        if key in self._read:
            return self._read[key][1]
        return self.parent.read_for_replicas(variable)

    def before(self, variables: Sequence[Variable]) -> list[Any]:
        return self.parent.before(variables)

    def lookup(self, table: Any, ids: Any, nested: bool = False) -> Any:
        return self.parent.lookup(table, ids, nested or not self.here)

    def record(self, effects: Sequence[Effect]) -> None:
        self.parent.record(effects)

    def write(self, variable: Variable, value: Any) -> None:
        self.parent.write(variable, value)
