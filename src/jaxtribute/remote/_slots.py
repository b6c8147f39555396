"""The state of optimizers on parameter servers: variables beside those they belong to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .._reduce import VariableAggregation, VariableSynchronization
from ..variables import _frames
from ._variable import Described, RemoteVariable, Slot

_LEAF_BITS, _VARIABLE_BITS = 10, 36
_SLOT = 1 << 62  # so that no variable that the coordinator numbered has the same


def slot_number(optimizer: int, variable: int, leaf: int) -> int:
    """Return how a server knows one part of the state of an optimizer for one variable.

    It follows from what it is, so that every process knows it without asking.
    """
    return _SLOT | ((optimizer << _VARIABLE_BITS | variable) << _LEAF_BITS) | leaf


def slot(
    owner: RemoteVariable, optimizer: int, leaf: int, name: str, shape: Sequence[int], dtype: Any
) -> RemoteVariable:
    """Return the variable for one part of the state of an optimizer."""
    described = Described(
        number=slot_number(optimizer, owner.number, leaf),
        task=owner.described.task,
        name=name,
        shape=tuple(shape),
        dtype=dtype,
        trainable=False,
        synchronization=VariableSynchronization.AUTO,
        aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
        slot=Slot(optimizer, owner.number, leaf),
    )
    return owner.session.variable(described)


class CommonSlot(RemoteVariable):
    """A part of the state that each server keeps for each variable, such as the count of steps.

    It is read from the first of them, and assigned to all.
    """

    def __init__(self, copies: Sequence[RemoteVariable], name: str) -> None:
        super().__init__(copies[0].described, copies[0].session)
        self._copies = copies
        self._name = name

    @property
    def copies(self) -> Sequence[RemoteVariable]:
        return self._copies

    def _read(self, frame: _frames.Frame) -> Any:
        return frame.read(self._copies[0])

    def _record(self, kind: str, value: Any) -> Any:
        for copy in self._copies:
            copy._record(kind, value)
        return self

    def assign_synchronized(self, value: Any) -> None:
        for copy in self._copies:
            copy.assign_synchronized(value)

    def share(self) -> Any:
        return self._copies[0].share()

    def store(self, data: Any, shared: bool = False) -> None:
        for copy in self._copies:
            copy.store(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return CommonSlot, (list(self._copies), self._name)
