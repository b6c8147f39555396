"""What has to be undone if something fails half-way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._effects import Effect

if TYPE_CHECKING:
    from ._base import Variable


class Journal:
    """Remembers what variables were, to put it back after a failure."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Variable, Any]] = {}
        self.effects: list[Effect] = []  # on variables that live elsewhere, for the end

    def note(self, variable: Variable) -> None:
        """Remember a variable that is about to be stored."""
        self._before.setdefault(id(variable), (variable, variable.share()))

    def undo(self) -> None:
        """Put everything back."""
        for variable, data in self._before.values():
            variable.store(data, shared=True)
