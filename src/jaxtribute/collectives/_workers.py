"""Reductions over the devices of several workers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import jax

from .._options import CommunicationOptions
from .._topology import REPLICA_AXIS
from ._all_reduce import Packed

__all__ = ["CollectiveAllReduce"]

# Measured on two processes: one small all-reduce costs 1-2 ms however small it is, and joining
# costs a copy, which is worth less than that up to about this size.
_SMALL = 64 * 1024


class CollectiveAllReduce(Packed):
    """Reduces with XLA's all-reduce over all workers: Gloo on CPUs, NCCL on GPUs, ICI on TPUs."""

    def __init__(self, options: CommunicationOptions | None = None) -> None:
        super().__init__()
        self._options = options or CommunicationOptions()
        self._variants: dict[CommunicationOptions, CollectiveAllReduce] = {self._options: self}
        self.timeout = self._options.timeout_seconds

    def with_options(self, options: CommunicationOptions | None) -> CollectiveAllReduce:
        """Return what reduces as the options of one call say."""
        merged = self._options.overridden_by(options)
        if merged not in self._variants:
            self._variants[merged] = CollectiveAllReduce(merged)
        return self._variants[merged]

    def _packs(self, values: Sequence[jax.Array]) -> list[list[int]]:
        if self._options.bytes_per_pack:
            return _filled(values, self._options.bytes_per_pack)
        packs: dict[Hashable, list[int]] = {}
        for i, value in enumerate(values):
            packs.setdefault(value.dtype if value.nbytes <= _SMALL else i, []).append(i)
        return list(packs.values())

    def _sum_one(self, value: jax.Array, num_replicas: int) -> jax.Array:
        return jax.lax.psum(value, REPLICA_AXIS)

    def __repr__(self) -> str:
        return f"CollectiveAllReduce({self._options})"


def _filled(values: Sequence[jax.Array], limit: int) -> list[list[int]]:
    """Return packs of neighbours of one type, of `limit` bytes or little more than that."""
    packs: list[list[int]] = []
    size = limit
    for i, value in enumerate(values):
        if size >= limit or value.dtype != values[packs[-1][0]].dtype:
            packs.append([])
            size = 0
        packs[-1].append(i)
        size += value.nbytes
    return packs
