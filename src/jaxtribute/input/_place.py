"""Bringing the elements of a step to the devices of the replicas."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .. import _tree
from .._topology import Topology
from ..data._elements import copied, structure_text
from ..errors import InvalidArgumentError
from ..values import PerReplica
from ._steps import Step


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
        if step.is_even and self._wrap:
            return self._as_stacked(step, number)
        pieces = [self._leaves(piece, number) for piece in step.pieces]
        if not self._wrap:
            (leaves,) = pieces
            return self._rebuild([self._on_device(leaf, 0) for leaf in leaves])
        columns = zip(*pieces, strict=True)
        return self._rebuild([self._per_replica(column) for column in columns])

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

    def _as_stacked(self, step: Step, number: int) -> Any:
        """Return the pieces of an evenly divided batch as one array, sharded over the devices."""
        count, size = len(step.sizes), step.sizes[0]
        leaves = [
            leaf.reshape(count, size, *leaf.shape[1:]) for leaf in self._leaves(step.batch, number)
        ]
        if not self._fetch:
            return self._rebuild([PerReplica(tuple(leaf), self._topology) for leaf in leaves])
        return self._rebuild([self._stacked(leaf) for leaf in leaves])

    def _stacked(self, rows: Any) -> PerReplica:
        if rows.dtype.kind == "O":
            return PerReplica(tuple(rows), self._topology)
        # One call for all devices: half the time of `device_put`.
        array = jax.make_array_from_callback(rows.shape, self._topology.stacked, rows.__getitem__)
        return PerReplica.from_stacked(array, self._topology)

    def _per_replica(self, components: tuple[Any, ...]) -> PerReplica:
        placed = [self._on_device(leaf, replica) for replica, leaf in enumerate(components)]
        value = PerReplica(placed, self._topology)
        if self._fetch:
            value.stacked(self._topology)  # here, in the background, if they are of one shape
        return value

    def _on_device(self, leaf: Any, replica: int) -> Any:
        if not self._fetch or isinstance(leaf, bytes) or np.asarray(leaf).dtype == object:
            return leaf
        return jax.device_put(leaf, self._topology.devices[replica])
