"""`input` for loaders that know nothing of devices: their batches are put there with JAX."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.peers.input_work import BATCHES, REPLICAS, Proof


class DevicePut:
    """The session of one case, over an endless iterator of batches of NumPy arrays."""

    def __init__(self, batches: Iterator[tuple[Any, ...]]) -> None:
        mesh = Mesh(jax.devices("cpu")[:REPLICAS], ("replica",))
        self.sharding = NamedSharding(mesh, PartitionSpec("replica"))
        self.batches = batches
        proof = Proof()
        for _ in range(BATCHES):
            proof.add(*self._next())
        self.outcome = proof.total

    def _next(self) -> tuple[jax.Array, ...]:
        return jax.block_until_ready(jax.device_put(next(self.batches), self.sharding))

    def reset(self) -> None:
        """Do nothing: the data has no end, and starting anew would start worker processes."""

    def run(self, steps: int) -> float:
        """Wait for so many batches, and return what whole epochs of them added up to."""
        for _ in range(steps):
            self._next()
        return self.outcome


def use_devices() -> None:
    """Have as many CPU devices as there are replicas; not for worker processes."""
    jax.config.update("jax_num_cpu_devices", REPLICAS)
