"""Variables that are worth other values while a function is traced to be saved.

A `Lender` does so for the variables of one library. What a function does to them meanwhile is
kept, and is the program's to do when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from .. import _context
from .._ids import take
from ..errors import InvalidArgumentError
from ..sharded import ShardedVariable
from ..variables import Variable, _frames

Changes = Callable[[], dict[str, Any]]  # the new values of variables that were assigned


class Lender(Protocol):
    """Makes the variables of one library worth other values."""

    def lend(self, values: Mapping[str, Any]) -> AbstractContextManager[Changes]:
        """Have variables, by their paths, be worth something else inside."""
        ...

    def in_place_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what to call, inside, for a function."""
        ...


class VariableLender:
    """Lends values to variables of jaxtribute."""

    def __init__(self, variables: Mapping[str, Variable | ShardedVariable]) -> None:
        self._variables = dict(variables)

    @contextmanager
    def lend(self, values: Mapping[str, Any]) -> Generator[Changes]:
        """Have variables be worth other values, as they are to the only replica there is."""
        frame = _Frame((variable, values[path]) for path, variable in self._variables.items())
        with _context.outside(), _frames.opened(frame):

            def changes() -> dict[str, Any]:
                return {
                    path: variable.value()
                    for path, variable in self._variables.items()
                    if frame.has_changed(variable)
                }

            yield changes

    def in_place_of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


class _Frame(_frames.Frame):
    """Variables as inputs of a program that is saved."""

    def __init__(self, values: Iterable[tuple[Variable | ShardedVariable, Any]]) -> None:
        single: list[tuple[Variable, Any]] = []
        self._whole: dict[int, Any] = {}
        for variable, value in values:
            if isinstance(variable, ShardedVariable):
                self._whole[id(variable)] = value
                single += zip(variable.variables, variable.split(value), strict=True)
            else:
                single.append((variable, value))
        super().__init__(_frames.STORAGE, single)

    @property
    def combined(self) -> bool:
        return True

    @property
    def in_program(self) -> bool:
        return True

    def has_changed(self, variable: Variable | ShardedVariable) -> bool:
        """Tell whether something was assigned to a variable."""
        shards: Any = getattr(variable, "variables", (variable,))
        return any(
            id(shard) in self._written or any(effect.on(shard) for effect in self.effects)
            for shard in shards
        )

    def lookup(self, table: Any, ids: Any, nested: bool = False) -> Any:
        if id(table) in self._whole and not self.has_changed(table):
            return take(self._whole[id(table)], ids)
        return table.take(self, ids)

    def load(self, variable: Variable) -> Any:
        raise InvalidArgumentError(
            f"It uses the variable {variable.name!r}, which is not part of what is saved. Keep it "
            "in an attribute of the object that is saved, or of a jt.Module in one."
        )

    def read_for_replicas(self, variable: Variable) -> Any:
        raise InvalidArgumentError(
            "It runs several replicas, and a saved program runs on one device. Save what one "
            "replica does: the function that is given to strategy.run."
        )
