"""What has to be undone if something fails half-way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ._effects import Effect

if TYPE_CHECKING:
    from ._base import Variable


class Journal:
    """Remembers what variables were, to put it back after a failure."""

    def __init__(self) -> None:
        self._before: dict[int, Callable[[], None]] = {}
        self.effects: list[Effect] = []  # on variables that live elsewhere, for the end

    def note(self, variable: Variable) -> None:
        """Remember a variable that is about to be stored."""
        if id(variable) not in self._before:
            self._before[id(variable)] = variable.remember()

    def undo(self) -> None:
        """Put everything back."""
        for put_back in self._before.values():
            put_back()
