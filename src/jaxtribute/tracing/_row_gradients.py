"""Gradients of tables of which only some rows are used.

A table may be larger than memory, so its gradient is that of the rows that were looked up. To find
it, zeros are added to the rows, and the gradient is taken with respect to these zeros. How many
there have to be is seen only when the function runs: so it is run to find out, and then again.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from .._ids import or_past_the_last
from ..errors import FailedPreconditionError
from ..sharded import ShardedVariable
from ..values import IndexedSlices
from ..variables import Variable, _frames

_MANY_PLANS = 16

Table = Variable | ShardedVariable


def parts_of(table: Table) -> tuple[Variable, ...]:
    """Return the variables that hold the rows of a table, in order."""
    return table.variables if isinstance(table, ShardedVariable) else (table,)


@dataclass(frozen=True)
class Kind:
    """All there is to know of a lookup in advance."""

    parts: tuple[int, ...]  # the identities of the variables that hold the rows
    shape: tuple[int, ...]  # of the rows that were looked up
    dtype: Any


@dataclass(frozen=True)
class Plan:
    """What a function uses of the variables it is differentiated by."""

    whole: frozenset[int] = frozenset()  # the identities of those that are read
    lookups: Mapping[Kind, int] = field(default_factory=Counter[Kind])

    def joined_by(self, other: Plan) -> Plan:
        """Return what is used in either."""
        return Plan(self.whole | other.whole, Counter(self.lookups) | Counter(other.lookups))

    def given(self, variables: Iterable[Variable]) -> list[Variable]:
        """Return the variables whose values are inputs.

        To read one that lives here costs nothing, so it is an input unless only its rows are used.
        """
        looked_up = {part for kind in self.lookups for part in kind.parts}
        return [
            v for v in variables if id(v) in self.whole or not (v.is_remote or id(v) in looked_up)
        ]

    def zeros(self) -> list[list[jax.Array]]:
        """Return what is added to the rows of each lookup."""
        return [
            [jnp.zeros(kind.shape, kind.dtype) for _ in range(count)]
            for kind, count in self.lookups.items()
        ]


class GivenUp(Exception):
    """A function used more than was foreseen, and has to be run again."""

    def __init__(self, needed: Plan) -> None:
        super().__init__()
        self.needed = needed


_of_code: weakref.WeakKeyDictionary[CodeType, dict[tuple[int, ...], Plan]] = (
    weakref.WeakKeyDictionary()
)


class Plans:
    """What functions turned out to use, for the next time.

    Only a guess: a wrong one costs another run of the function.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        # The function itself is often made anew for each step.
        code = getattr(fn, "__code__", None)
        own: dict[tuple[int, ...], Plan] = {}
        self._plans = _of_code.setdefault(code, own) if isinstance(code, CodeType) else own

    def recall(self, variables: Sequence[Variable]) -> Plan:
        """Return what was used of variables the last time."""
        return self._plans.get(tuple(map(id, variables)), Plan())

    def remember(self, variables: Sequence[Variable], plan: Plan) -> None:
        """Keep what was used of variables this time."""
        key = tuple(map(id, variables))
        if key not in self._plans and len(self._plans) >= _MANY_PLANS:
            self._plans.clear()
        self._plans[key] = plan


@dataclass(frozen=True)
class Lookup:
    """Rows of a table that were used."""

    table: Table
    ids: Any
    kind: Kind
    number: int  # among those of the same kind


class GradientPass(_frames.GradientFrame):
    """Variables while a gradient is taken, and what of them turned out to be used.

    Args:
      parent: the frame around.
      variables: those that the function is differentiated by.
      values: of those that are inputs.
      zeros: to be added to the rows of lookups that were foreseen.
      nested: whether a trace was opened inside `parent` that it knows nothing of.
    """

    def __init__(
        self,
        parent: _frames.Frame,
        variables: Iterable[Variable],
        values: Iterable[tuple[Variable, Any]],
        zeros: Mapping[Kind, Sequence[Any]],
        nested: bool,
    ) -> None:
        super().__init__(parent, values)
        self._nested = nested
        self._variables = {id(variable) for variable in variables}
        self._zeros = zeros
        self._counts: Counter[Kind] = Counter()
        self._whole: set[int] = set()
        self.lookups: list[Lookup] = []
        self.created: list[Table] = []  # those that can be trained
        self._foreseen = True

    def used(self) -> Plan:
        """Return what was used.

        Raises:
          GivenUp: when not all of it was foreseen.
        """
        used = Plan(frozenset(self._whole), self._counts)
        if not self._foreseen:
            raise GivenUp(used)
        return used

    def was_created(self, variable: Any) -> None:
        if isinstance(variable, (Variable, ShardedVariable)) and variable.trainable:
            self.created.append(variable)
        super().was_created(variable)

    def read(self, variable: Variable) -> Any:
        self._note(variable)
        return super().read(variable)

    def read_for_replicas(self, variable: Variable) -> Any:
        self._note(variable)
        return super().read_for_replicas(variable)

    def _note(self, variable: Variable) -> None:
        if id(variable) in self._variables:
            self._whole.add(id(variable))
            self._foreseen = self._foreseen and id(variable) in self._values

    def lookup(self, table: Any, ids: Any, nested: bool = False) -> Any:
        parts = tuple(id(part) for part in parts_of(table))
        if self._variables.isdisjoint(parts):
            return super().lookup(table, ids, nested)
        if nested or not self.here or not self._written.keys().isdisjoint(parts):
            # The ids could not be carried out, or the rows are not those the table began with.
            if table.is_remote:
                raise FailedPreconditionError(
                    f"Rows of {table.name!r}, which is on parameter servers, were looked up inside "
                    "a JAX transformation (jax.lax.scan, jax.vmap, jax.checkpoint ...) in a "
                    "function whose gradient is taken, where it would take all of the table. Look "
                    "them up outside of it, and pass it the rows."
                )
            return table.take(self, ids)
        rows = self.parent.lookup(table, ids, self._nested)
        kind = Kind(parts, rows.shape, rows.dtype)
        number = self._counts[kind]
        self._counts[kind] += 1
        self.lookups.append(Lookup(table, ids, kind, number))
        zeros = self._zeros.get(kind, ())
        if number >= len(zeros):
            self._foreseen = False
            return rows
        return rows + zeros[number]


@dataclass(frozen=True)
class Gradients:
    """The gradients that one pass has found.

    Args:
      whole: those of variables whose values were inputs, by identity.
      read: the identities of the variables that were read.
      rows: the lookups, each with the gradient of its rows.
    """

    whole: Mapping[int, jax.Array]
    read: frozenset[int]
    rows: Sequence[tuple[Lookup, jax.Array]]

    def of(self, target: Table) -> jax.Array | IndexedSlices | None:
        """Return the gradient with respect to one variable: of all of it, or of some rows.

        None if it was not used: an optimizer that keeps a momentum must not move it.
        """
        parts = parts_of(target)
        slices = [s for lookup, rows in self.rows for s in _slices(target, lookup, rows)]
        if not any(id(part) in self.read for part in parts):
            if slices:
                values = jnp.concatenate([s.values for s in slices])
                indices = jnp.concatenate([s.indices for s in slices])
                return IndexedSlices(values, indices, target.shape)
            return None
        pieces = [self._whole(part) for part in parts]
        total = pieces[0] if len(pieces) == 1 else jnp.concatenate(pieces)
        for each in slices:
            total = total.at[each.indices].add(each.values, mode="drop")
        return total

    def _whole(self, part: Variable) -> jax.Array:
        gradient = self.whole.get(id(part))
        return jnp.zeros(part.shape, part.dtype) if gradient is None else gradient


def _slices(target: Table, lookup: Lookup, rows: jax.Array) -> list[IndexedSlices]:
    """Return what the rows of a lookup are in terms of another table, which may share parts."""
    if lookup.kind.parts == tuple(id(part) for part in parts_of(target)):
        return [IndexedSlices(rows, or_past_the_last(lookup.ids, target.shape[0]))]
    places = dict(zip((id(part) for part in parts_of(target)), _offsets(target), strict=False))
    found: list[IndexedSlices] = []
    for part, start in zip(parts_of(lookup.table), _offsets(lookup.table), strict=False):
        if id(part) not in places:
            continue
        found.append(_part(rows, lookup.ids, part.shape[0], start, places[id(part)]))
    return found


def _part(rows: jax.Array, ids: Any, size: int, start: int, place: int) -> IndexedSlices:
    """Return those rows that are among `size` ones from `start` on, which come to be at `place`."""
    inside = (ids >= start) & (ids < start + size)
    if not isinstance(inside, Tracer):
        [own] = np.asarray(inside).nonzero()
        return IndexedSlices(rows[own], jnp.asarray(ids)[own] - start + place)
    # How many there are is not known. The others are zeros added to a row that is used anyway: an
    # optimizer that treats only rows which are named should not treat more of them.
    used = jnp.max(jnp.where(inside, ids, start), initial=start)
    values = jnp.where(inside.reshape(-1, *(1,) * (rows.ndim - 1)), rows, 0)
    return IndexedSlices(values, jnp.where(inside, ids, used) - start + place)


def _offsets(table: Table) -> list[int]:
    return table.row_offsets if isinstance(table, ShardedVariable) else [0]
