"""Reductions in which all devices take part at once."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._topology import REPLICA_AXIS
from ._base import CrossDeviceOps

__all__ = ["HierarchicalCopyAllReduce", "NcclAllReduce"]


class Packed(CrossDeviceOps, ABC):
    """Sends values in packs."""

    def sum_in_step(self, values: Sequence[jax.Array], num_replicas: int) -> list[jax.Array]:
        totals: list[jax.Array | None] = [None] * len(values)
        for positions in self._packs(values):
            pack = [values[i] for i in positions]
            joined = self._sum_one(_join(pack), num_replicas)
            for i, total in zip(positions, _part(joined, pack), strict=True):
                totals[i] = total
        return [total for total in totals if total is not None]

    @abstractmethod
    def _packs(self, values: Sequence[jax.Array]) -> list[list[int]]:
        """Return which values, by position, are sent together."""

    @abstractmethod
    def _sum_one(self, value: jax.Array, num_replicas: int) -> jax.Array: ...


class _InPacks(Packed):
    """Sends values in a given number of packs."""

    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise ValueError(
                f"num_packs must be 0 (each value on its own) or more, got {num_packs}."
            )
        super().__init__()
        self._num_packs = num_packs

    def _packs(self, values: Sequence[jax.Array]) -> list[list[int]]:
        if not self._num_packs:
            return _each(range(len(values)))
        size = -(-len(values) // self._num_packs)
        packs: dict[Hashable, list[int]] = {}
        for i, value in enumerate(values):
            # Joining costs a copy, which large arrays are not worth.
            small = value.nbytes <= _SMALL
            packs.setdefault((i // size, value.dtype) if small else i, []).append(i)
        return list(packs.values())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_packs={self._num_packs})"


class NcclAllReduce(_InPacks):
    """Reduces with XLA's own all-reduce: NCCL on GPUs, ICI on TPUs, in-process on CPUs.

    This is what `MirroredStrategy` uses unless told otherwise.

    >>> jt.NcclAllReduce(num_packs=2)
    NcclAllReduce(num_packs=2)

    Args:
      num_packs: in how many collectives a list of values is sent; 0 sends each on its own. Packs of
        more than 8 values are left to XLA to join.

    Raises:
      ValueError: for a negative `num_packs`.
    """

    def _packs(self, values: Sequence[jax.Array]) -> list[list[int]]:
        packs = super()._packs(values)
        return [part for pack in packs for part in ([pack] if len(pack) <= _FEW else _each(pack))]

    def _sum_one(self, value: jax.Array, num_replicas: int) -> jax.Array:
        return jax.lax.psum(value, REPLICA_AXIS)


class HierarchicalCopyAllReduce(_InPacks):
    """Reduces in two levels of device-to-device copies: inside groups, then between them.

    Meant for machines whose devices form islands that are linked faster inside than between, such
    as a DGX-1. Groups are as near to the square root of the number of devices as divides it.

    >>> jt.HierarchicalCopyAllReduce()
    HierarchicalCopyAllReduce(num_packs=1)

    Args:
      num_packs: in how many packs a list of values is copied; 0 copies each on its own.

    Raises:
      ValueError: for a negative `num_packs`.
    """

    def _sum_one(self, value: jax.Array, num_replicas: int) -> jax.Array:
        plan = copy_plan(num_replicas)
        replica_id = jax.lax.axis_index(REPLICA_AXIS)
        for copies in plan.collect:
            arrived = jax.lax.ppermute(value, REPLICA_AXIS, copies)
            value = jnp.where(_receives(copies, replica_id), value + arrived, value)
        for copies in plan.spread:
            arrived = jax.lax.ppermute(value, REPLICA_AXIS, copies)
            value = jnp.where(_receives(copies, replica_id), arrived, value)
        return value


Copies = list[tuple[int, int]]  # (from, to)


class CopyPlan(NamedTuple):
    """The copies, round by round, of a two-level reduction."""

    collect: list[Copies]
    spread: list[Copies]


def copy_plan(num_replicas: int) -> CopyPlan:
    """Return copies that add up everything on the first device, and spread the sum again.

    Each sum is made once and copied, never made again elsewhere: floating-point addition in
    another order would let the copies of a variable drift apart.
    """
    groups = next(g for g in range(int(num_replicas**0.5), 0, -1) if num_replicas % g == 0)
    size = num_replicas // groups
    leaders = range(0, num_replicas, size)
    into_leaders = [[(leader + i, leader) for leader in leaders] for i in range(1, size)]
    into_first = [[(leader, 0)] for leader in leaders[1:]]
    reverse = [
        [(to, from_) for from_, to in copies] for copies in reversed(into_leaders + into_first)
    ]
    return CopyPlan(collect=into_leaders + into_first, spread=reverse)


def _receives(copies: Copies, replica_id: jax.Array) -> jax.Array:
    return jnp.isin(replica_id, jnp.array([to for _, to in copies]))


# Measured on two CPU devices: four arrays of 1 KiB took half as long joined as one by one, of
# 32 KiB two thirds, of 128 KiB a third longer.
_SMALL = 32 * 1024


# Joining saves some 10 microseconds per array and step, and costs XLA some 30 ms per array when it
# compiles the program. Small models, which take many short steps, gain from it; large ones do not.
_FEW = 8


def _each(positions: Iterable[int]) -> list[list[int]]:
    return [[position] for position in positions]


def _join(values: Sequence[jax.Array]) -> jax.Array:
    if len(values) == 1:
        return values[0]
    return jnp.concatenate([value.ravel() for value in values])


def _part(joined: jax.Array, like: Sequence[jax.Array]) -> list[jax.Array]:
    """Undo `_join`."""
    if len(like) == 1:
        return [joined]
    ends = list(itertools.accumulate(value.size for value in like))
    return [
        joined[end - value.size : end].reshape(value.shape)
        for end, value in zip(ends, like, strict=True)
    ]
