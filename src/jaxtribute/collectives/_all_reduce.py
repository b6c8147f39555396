"""Reductions in which all devices take part at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .._topology import REPLICA_AXIS
from ._base import CrossDeviceOps

__all__ = ["HierarchicalCopyAllReduce", "NcclAllReduce"]


class _Packed(CrossDeviceOps):
    """Sends values in a given number of packs."""

    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise ValueError(
                f"num_packs must be 0 (each value on its own) or more, got {num_packs}."
            )
        super().__init__()
        self._num_packs = num_packs

    def sum_in_step(self, values: Sequence[jax.Array], num_replicas: int) -> list[jax.Array]:
        size = -(-len(values) // self._num_packs) if self._num_packs else 1
        packs = [tuple(values[i : i + size]) for i in range(0, len(values), size)]
        return [total for pack in packs for total in self._sum_pack(pack, num_replicas)]

    def _sum_pack(self, pack: tuple[jax.Array, ...], num_replicas: int) -> tuple[jax.Array, ...]:
        raise NotImplementedError  # both subclasses have it

    def __repr__(self) -> str:
        return f"{type(self).__name__}(num_packs={self._num_packs})"


class NcclAllReduce(_Packed):
    """Reduces with XLA's own all-reduce: NCCL on GPUs, ICI on TPUs, in-process on CPUs.

    This is what `MirroredStrategy` uses unless told otherwise.

    >>> jt.NcclAllReduce(num_packs=2)
    NcclAllReduce(num_packs=2)

    Args:
      num_packs: in how many collectives a list of values is sent; 0 sends each on its own.

    Raises:
      ValueError: for a negative `num_packs`.
    """

    def _sum_pack(self, pack: tuple[jax.Array, ...], num_replicas: int) -> tuple[jax.Array, ...]:
        return jax.lax.psum(pack, REPLICA_AXIS)


class HierarchicalCopyAllReduce(_Packed):
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

    def _sum_pack(self, pack: tuple[jax.Array, ...], num_replicas: int) -> tuple[jax.Array, ...]:
        plan = copy_plan(num_replicas)
        replica_id = jax.lax.axis_index(REPLICA_AXIS)
        for copies in plan.collect:
            arrived = jax.lax.ppermute(pack, REPLICA_AXIS, copies)
            pack = _where_received(copies, replica_id, pack, arrived, lambda a, b: a + b)
        for copies in plan.spread:
            arrived = jax.lax.ppermute(pack, REPLICA_AXIS, copies)
            pack = _where_received(copies, replica_id, pack, arrived, lambda _, b: b)
        return pack


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


def _where_received(
    copies: Copies,
    replica_id: jax.Array,
    kept: tuple[jax.Array, ...],
    arrived: tuple[jax.Array, ...],
    combine: Callable[[jax.Array, jax.Array], jax.Array],
) -> tuple[jax.Array, ...]:
    received = jnp.isin(replica_id, jnp.array([to for _, to in copies]))
    return tuple(jnp.where(received, combine(a, b), a) for a, b in zip(kept, arrived, strict=True))
