"""Bringing the elements of a step to the devices of the replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .. import _tree
from .._topology import Topology
from .._wide import check_fits, is_text
from ..data._elements import copied, structure_text
from ..errors import InvalidArgumentError
from ..values import PerReplica
from ..values._per_replica import type_of
from ._steps import Step


@dataclass(frozen=True)
class Pieces:
    """The arrays of one element: for each leaf of its structure, a part for each replica."""

    columns: list[Any]
    even: bool  # the parts are the rows of one array
    everywhere: tuple[int, ...] | None = None  # the sizes on all workers, where they are known

    def types(self) -> list[list[Any]]:
        """Return the shape and type of each part, as JSON has them."""
        return [[type_of(part) for part in column] for column in self.columns]


def _resized(kind: Any, sizes: Sequence[int]) -> list[Any]:
    """Return the types of parts of these sizes, given that of one of them."""
    if kind is None:
        return [None] * len(sizes)
    shape, dtype = kind
    return [[[size, *shape[1:]], dtype] for size in sizes]


class Placement:
    """Turns steps into what users iterate over, and checks that they are built alike."""

    def __init__(self, topology: Topology, wrap: bool, fetch: bool, copy: bool) -> None:
        self._topology = topology
        self._wrap = wrap
        self._fetch = fetch
        # JAX may use the memory of an array as it is, whatever it is asked: may_alias=False is
        # not heeded on CPUs. So what is not in memory of our own is copied first.
        self._copy = copy
        self._structure: _tree.Structure | None = None
        self._kinds: list[Any] = []
        self._first = ""

    def __call__(self, step: Step, number: int) -> Any:
        """Return the element of a step: arrays, or `PerReplica`s of arrays."""
        return self.place(self.take_apart(step, number))

    def take_apart(self, step: Step, number: int) -> Pieces:
        """Check the element of a step, and return the arrays it consists of."""
        if step.is_even and self._wrap:
            count, size = len(step.sizes), step.sizes[0]
            leaves = self._leaves(step.batch, number)
            rows = [leaf.reshape(count, size, *leaf.shape[1:]) for leaf in leaves]
            return Pieces(rows, True, step.everywhere)
        pieces = [self._leaves(piece, number) for piece in step.pieces]
        return Pieces(list(zip(*pieces, strict=True)), False, step.everywhere)

    def place(self, pieces: Pieces, types: Sequence[Sequence[Any]] | None = None) -> Any:
        """Bring an element to the devices.

        Args:
          pieces: the element.
          types: what `Pieces.types` is on each worker, if there are several.
        """
        if not self._wrap:
            return self._rebuild([self._on_device(leaf, 0) for (leaf,) in pieces.columns])
        everywhere = self._everywhere(pieces, types)
        return self._rebuild(
            [
                self._value(column, pieces.even, kinds)
                for column, kinds in zip(pieces.columns, everywhere, strict=True)
            ]
        )

    def _everywhere(
        self, pieces: Pieces, types: Sequence[Sequence[Any]] | None
    ) -> Sequence[list[Any] | None]:
        """Return for each leaf the types of its parts on all workers, by replica."""
        if types is None:
            if pieces.everywhere is None or not self._topology.spans_workers:
                return [None] * len(pieces.columns)
            firsts = [type_of(column[0]) for column in pieces.columns]
            return [_resized(kind, pieces.everywhere) for kind in firsts]
        return [[kind for worker in types for kind in worker[i]] for i in range(len(types[0]))]

    def _value(self, column: Any, even: bool, kinds: list[Any] | None) -> PerReplica:
        if even and (kinds is None or all(kind == kinds[0] for kind in kinds)):
            return self._stacked(column)
        return self._per_replica(tuple(column), kinds)

    def _leaves(self, element: Any, number: int) -> list[Any]:
        leaves, structure = _tree.flatten(copied(element) if self._copy else element)
        kinds = [leaf.dtype if hasattr(leaf, "dtype") else type(leaf) for leaf in leaves]
        if self._structure is None:
            self._structure, self._kinds, self._first = structure, kinds, structure_text(element)
        elif structure != self._structure or kinds != self._kinds:
            raise InvalidArgumentError(
                f"The element of step {number} is built differently from those before it: it is "
                f"{structure_text(element)}, the first one was {self._first}. All elements of a "
                "dataset must have the same structure and types."
            )
        return leaves

    def _rebuild(self, leaves: list[Any]) -> Any:
        assert self._structure is not None
        return self._structure.unflatten(leaves)

    def _stacked(self, rows: Any) -> PerReplica:
        """Return the pieces of an evenly divided batch as one array, sharded over the devices."""
        if not self._fetch or is_text(rows):
            return PerReplica(tuple(rows), self._topology)
        topology = self._topology
        if topology.spans_workers:
            return PerReplica.from_stacked(topology.stack(list(rows)), topology)
        check_fits(rows, "A distributed dataset")
        # One call for all devices: half the time of `device_put`.
        array = jax.make_array_from_callback(rows.shape, topology.stacked, rows.__getitem__)
        return PerReplica.from_stacked(array, topology)

    def _per_replica(self, components: tuple[Any, ...], kinds: list[Any] | None) -> PerReplica:
        placed = [self._on_device(leaf, replica) for replica, leaf in enumerate(components)]
        value = PerReplica(placed, self._topology, kinds)
        if self._fetch:
            value.stacked(self._topology)  # here, in the background, if they are of one shape
        return value

    def _on_device(self, leaf: Any, replica: int) -> Any:
        if not self._fetch or isinstance(leaf, (bytes, str)) or is_text(np.asarray(leaf)):
            return leaf
        check_fits(leaf, "A distributed dataset")
        return jax.device_put(leaf, self._topology.local_devices[replica])
