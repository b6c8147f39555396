"""The parts of which the value of a variable consists, and where each of them is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..remote import RemoteVariable
from ..sharded import ShardedVariable


@dataclass(frozen=True)
class Piece:
    """Rows of a variable; all of it, if it is not divided."""

    variable: Any
    start: int
    stop: int

    @property
    def is_remote(self) -> bool:
        """Whether a parameter server holds it."""
        return isinstance(self.variable, RemoteVariable)


def pieces_of(variable: Any) -> list[Piece]:
    """Return what a variable consists of, in order."""
    if not isinstance(variable, ShardedVariable):
        return [Piece(variable, 0, variable.shape[0] if variable.shape else 1)]
    offsets = variable.row_offsets
    return [
        Piece(shard, start, stop)
        for shard, start, stop in zip(variable.variables, offsets[:-1], offsets[1:], strict=True)
    ]
