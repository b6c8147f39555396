"""Rows of tables that live elsewhere, as inputs of a compiled program.

Which rows a step needs is usually seen from its batch. So the part of the program that computes the
ids is compiled by itself and runs first; the rows are fetched, from all servers at once; and the
step has them as inputs. Asking for them in the middle of a running program would cost more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from .._jax_compat import TracedProgram
from ..variables import _frames


class Lookups:
    """The lookups of one program, in the order in which it makes them.

    Args:
      program: the program.
      tables: the table of each, by the number of the input that its rows are.
      others: the numbers of the other inputs that turned up, in order.
    """

    def __init__(
        self, program: TracedProgram, tables: dict[int, Any], others: Sequence[int]
    ) -> None:
        self._tables = list(tables.values())
        self.types = [program.type_of(number) for number in tables]
        numbers = list(tables)
        ids, needed = program.operands(numbers, [*others, *numbers])
        self._known_at_once = not any(needed[len(others) :])
        if self._known_at_once:
            ids, _ = program.operands(numbers, others)
            self._ids = [jax.jit(ids)]
        else:  # each may depend on the rows before it
            self._ids = [
                jax.jit(program.operands([number], [*others, *numbers[:count]])[0])
                for count, number in enumerate(numbers)
            ]

    def fetch(
        self, frame: _frames.Frame, turned_up: Sequence[Any], inputs: Sequence[Any]
    ) -> list[Any]:
        """Return the rows that a run of the program needs.

        Args:
          frame: the frame in which it runs.
          turned_up: its inputs that turned up, but the rows.
          inputs: its other inputs.
        """
        if self._known_at_once:
            ids = [np.asarray(each) for each in self._ids[0](*turned_up, *inputs)]
            return fetch_all(frame, list(zip(self._tables, ids, strict=True)))
        rows: list[Any] = []
        for table, function in zip(self._tables, self._ids, strict=True):
            (ids,) = function(*turned_up, *rows, *inputs)
            rows += fetch_all(frame, [(table, np.asarray(ids))])
        return rows


def fetch_all(frame: _frames.Frame, lookups: list[tuple[Any, np.ndarray[Any, Any]]]) -> list[Any]:
    """Return rows of several tables that live elsewhere, as they are worth in a frame."""
    if frame.has_effects:  # which their servers do not know of yet
        return [frame.lookup(table, ids) for table, ids in lookups]
    return lookups[0][0].fetch_all(lookups)
