"""Rows of tables that live elsewhere, as inputs of a compiled program.

Which rows a step needs is usually seen from its batch. So the part of the program that computes the
ids is compiled by itself and runs first; the rows are fetched, from all servers at once; and the
step has them as inputs. Asking for them in the middle of a running program would cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from .._jax_compat import inputs_in_use
from ..variables import _frames


class Given(NamedTuple):
    """What a program gets besides the variables it overwrites."""

    read: list[Any]
    elsewhere: list[Any]
    """The values of variables on parameter servers."""
    inputs: list[Any]
    rows: Sequence[Any] = ()
    """Of tables on parameter servers, one array for each lookup."""


class Lookups:
    """The lookups of one program, in the order in which it makes them.

    Args:
      tables: the table of each.
      ids: the function that returns the ids of all, given what the program is given.
    """

    def __init__(self, tables: Sequence[Any], ids: Callable[[list[Any], Given], list[Any]]) -> None:
        self._tables = tables
        self._function = ids
        self._ids = jax.jit(ids)
        self._known_at_once: bool | None = None
        self._types: list[jax.ShapeDtypeStruct] = []

    def types(self, written: list[Any], given: Given) -> list[jax.ShapeDtypeStruct]:
        """Return the types of the rows, for a program that is given something like this."""
        if not self._types:
            ids = jax.eval_shape(self._ids, written, given)
            self._types = [
                jax.ShapeDtypeStruct((*each.shape, *table.shape[1:]), table.dtype)
                for table, each in zip(self._tables, ids, strict=True)
            ]
        return self._types

    def fetch(self, frame: _frames.Frame, written: list[Any], given: Given) -> list[Any]:
        """Return the rows that a run of the program needs."""
        if self._known_at_once is None:
            one = len(self._tables) == 1
            self._known_at_once = one or not self._depend_on_rows(written, given)
        if self._known_at_once:
            ids = [np.asarray(each) for each in self._ids(written, given)]
            return fetch_all(frame, list(zip(self._tables, ids, strict=True)))
        rows: list[Any] = []
        for number, table in enumerate(self._tables):  # each may depend on the rows before it
            ids = np.asarray(self._ids(written, given._replace(rows=rows))[number])
            rows += fetch_all(frame, [(table, ids)])
        return rows

    def _depend_on_rows(self, written: list[Any], given: Given) -> bool:
        """Tell whether the ids of one lookup are computed from the rows of another."""
        with_rows = given._replace(rows=self.types(written, given))
        used = inputs_in_use(jax.make_jaxpr(self._function)(written, with_rows))
        return any(used[len(used) - len(self._tables) :])  # rows come last


def fetch_all(frame: _frames.Frame, lookups: list[tuple[Any, np.ndarray[Any, Any]]]) -> list[Any]:
    """Return rows of several tables that live elsewhere, as they are worth in a frame."""
    if frame.has_effects:  # which their servers do not know of yet
        return [frame.lookup(table, ids) for table, ids in lookups]
    return lookups[0][0].fetch_all(lookups)
