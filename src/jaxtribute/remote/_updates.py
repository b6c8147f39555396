"""Effects on variables as what each parameter server is told to do. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..ps import Operation
from ..rpc import array_type
from ..variables._effects import APPLY, Effect
from ._rows import Array, Distinct, split
from ._variable import RemoteVariable, shards_of

# Rows named twice can be added up before they are sent.
_ADDED_UP = frozenset({APPLY, "scatter_add", "scatter_sub"})


@dataclass
class Part:
    """What one server is told."""

    operations: list[Operation] = field(default_factory=list[Operation])
    arrays: list[Array] = field(default_factory=list[Array])

    def add(self, number: int, kind: str, arrays: Sequence[Array], optimizer: int) -> None:
        """Append an operation."""
        types = [array_type(array) for array in arrays]
        self.operations.append(Operation(number, kind, types, optimizer))
        self.arrays += arrays


def parts(
    effects: Sequence[Effect], distinct: Callable[[Array, int, str], Distinct] = Distinct.of
) -> dict[int, Part]:
    """Return what each server is told, by its index, in the order of the effects.

    Args:
      effects: what is to be done, with arrays that are known.
      distinct: finds the distinct ones among the rows of an effect; see `Distinct.of`.

    Raises:
      InvalidArgumentError: when rows are named that a table does not have.
    """
    told: dict[int, Part] = {}
    for effect in effects:
        optimizer = -1 if effect.optimizer is None else effect.optimizer.number
        arrays = [np.asarray(array) for array in effect.arrays]
        if len(arrays) == 1:
            shards = [(shards_of(effect.variable)[0], arrays)]
        else:
            shards = _sparse(effect, arrays[0], arrays[1], distinct)
        for variable, own in shards:
            part = told.setdefault(variable.described.task, Part())
            part.add(variable.number, effect.kind, own, optimizer)
    return told


def _sparse(
    effect: Effect, rows: Array, ids: Array, distinct: Callable[[Array, int, str], Distinct]
) -> list[tuple[RemoteVariable, list[Array]]]:
    """Divide rows between the shards of a table; those that have none are left out."""
    table: Any = effect.variable
    shards = shards_of(table)
    found = distinct(ids, table.shape[0], table.name)
    if effect.kind in _ADDED_UP:
        rows, ids = found.summed(rows), found.unique
    else:  # in the order in which they were given, as the last one may count
        order = np.argsort(ids, kind="stable")
        rows, ids = rows[order], ids[order].astype(np.int64)
    places = split(ids, [shard.shape[0] for shard in shards])
    return [
        (shard, [rows[place], own])
        for shard, (place, own) in zip(shards, places, strict=True)
        if own.size
    ]
