"""Reductions over the devices of several workers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import jax
import jax.numpy as jnp

from .._options import CommunicationOptions
from .._topology import REPLICA_AXIS
from ._all_reduce import Packed

__all__ = ["CollectiveAllReduce"]

# Measured with processes on one machine, on CPUs: joining arrays up to this size was faster than
# sending them one by one, and made no difference above.
_SMALL = 1024 * 1024

# Of all replicas together: up to this, collecting everything and adding it up was faster than
# Gloo's all-reduce, which takes more rounds.
_COLLECTED = 1024 * 1024


class CollectiveAllReduce(Packed):
    """Reduces over all workers: by Gloo between CPUs, and by what XLA has for other devices.

    Args:
      options: how values are sent.
      on_cpus: whether the devices are CPUs, for which there are faster ways than Gloo's all-reduce.
    """

    def __init__(self, options: CommunicationOptions | None = None, on_cpus: bool = True) -> None:
        super().__init__()
        self._options = options or CommunicationOptions()
        self._on_cpus = on_cpus
        self._variants: dict[CommunicationOptions, CollectiveAllReduce] = {self._options: self}
        self.timeout = self._options.timeout_seconds

    def with_options(self, options: CommunicationOptions | None) -> CollectiveAllReduce:
        """Return what reduces as the options of one call say."""
        merged = self._options.overridden_by(options)
        if merged not in self._variants:
            self._variants[merged] = CollectiveAllReduce(merged, self._on_cpus)
        return self._variants[merged]

    def _packs(self, values: Sequence[jax.Array]) -> list[list[int]]:
        if self._options.bytes_per_pack:
            return _filled(values, self._options.bytes_per_pack)
        packs: dict[Hashable, list[int]] = {}
        for i, value in enumerate(values):
            packs.setdefault(value.dtype if value.nbytes <= _SMALL else i, []).append(i)
        return list(packs.values())

    def _sum_one(self, value: jax.Array, num_replicas: int) -> jax.Array:
        if not self._on_cpus:
            return jax.lax.psum(value, REPLICA_AXIS)
        if num_replicas == 2:
            return _exchanged(value)
        if num_replicas * value.nbytes <= _COLLECTED:
            rows = jax.lax.all_gather(value, REPLICA_AXIS)
            return jnp.sum(rows, axis=0, dtype=value.dtype)
        return jax.lax.psum(value, REPLICA_AXIS)

    def __repr__(self) -> str:
        return f"CollectiveAllReduce({self._options})"


@jax.custom_jvp
def _exchanged(value: jax.Array) -> jax.Array:
    """Add up what two replicas have, each of which sends its own to the other.

    The loop never runs. It keeps XLA from computing `value` anew as part of the sum, where it
    would round differently from what the other replica is sent: the sums would differ.
    """
    never = jax.lax.axis_index(REPLICA_AXIS)
    _, value = jax.lax.while_loop(
        lambda state: state[0] < 0, lambda state: (state[0] + 1, -state[1]), (never, value)
    )
    return value + jax.lax.ppermute(value, REPLICA_AXIS, [(0, 1), (1, 0)])


@_exchanged.defjvp
def _exchanged_jvp(
    primals: tuple[jax.Array], tangents: tuple[jax.Array]
) -> tuple[jax.Array, jax.Array]:
    # The loop cannot be differentiated backwards.
    return _exchanged(*primals), jax.lax.psum(tangents[0], REPLICA_AXIS)


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
