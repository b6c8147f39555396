"""What a store held at one moment, as snapshots take and give it."""

from __future__ import annotations

from dataclasses import dataclass

from ._cell import Array


@dataclass(frozen=True)
class CellImage:
    """What a cell held."""

    name: str
    version: int
    array: Array


@dataclass(frozen=True)
class StateImage:
    """The state of an optimizer for a variable, and the numbers of its leaves if they have any."""

    optimizer: int
    number: int
    slots: list[int]
    leaves: list[CellImage]


@dataclass(frozen=True)
class AppliedImage:
    """Which updates were carried out: those below `settled`, and these."""

    settled: int
    closures: list[int]


@dataclass(frozen=True)
class Image:
    """All that a store held at one moment; its arrays never change."""

    origin: str
    clock: int
    closures: AppliedImage
    direct: AppliedImage
    variables: dict[int, CellImage]
    optimizers: dict[int, bytes]
    states: list[StateImage]
    changes: int = 0
    """What `Store.changes` was."""
