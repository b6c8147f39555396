"""`multi_worker` in plain JAX over Gloo: small gradients in one sum, and no waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.peers.mirrored_work import LEARNING_RATE, Batch, Work
from benchmarks.peers.multi_worker_cluster import this_cluster
from benchmarks.peers.serve import serve

AXIS = "replica"
SMALL = 1024 * 1024  # bytes; joining larger arrays costs more than another round of messages
Parameters = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


def sum_packed(values: Sequence[jax.Array]) -> list[jax.Array]:
    """Add up over all workers: each large array by itself, all small ones as one."""
    small = [value for value in values if value.nbytes <= SMALL]
    ends = np.cumsum([value.size for value in small])[:-1]
    joined = jax.lax.psum(jnp.concatenate([value.ravel() for value in small]), AXIS)
    parts = iter(jnp.split(joined, ends))
    return [
        next(parts).reshape(value.shape) if value.nbytes <= SMALL else jax.lax.psum(value, AXIS)
        for value in values
    ]


class Handwritten:
    """The session of one case."""

    def __init__(self, case: Mapping[str, int]) -> None:
        self.work = Work(**case)
        rows = slice(
            jax.process_index() * self.work.per_replica,
            (jax.process_index() + 1) * self.work.per_replica,
        )
        self.batches = [(x[rows], y[rows]) for x, y in self.work.batches()]
        mesh = Mesh(jax.devices(), (AXIS,))
        split, whole = PartitionSpec(AXIS), PartitionSpec()
        self.sharding = NamedSharding(mesh, split)
        self.replicated = NamedSharding(mesh, whole)
        step = jax.shard_map(
            self._replica_step,
            mesh=mesh,
            in_specs=(whole, split, split),
            out_specs=(whole, whole),
        )
        self.step = jax.jit(step, donate_argnums=0)

    def _replica_step(
        self, parameters: Parameters, x: jax.Array, y: jax.Array
    ) -> tuple[Parameters, jax.Array]:
        def loss_of(parameters: Parameters) -> jax.Array:
            w1, b1, w2, b2 = parameters
            logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return losses.sum() / self.work.batch

        # As varying values, or differentiation would sum the gradients by itself already.
        varying = jax.tree.map(lambda p: jax.lax.pcast(p, AXIS, to="varying"), parameters)
        loss, gradients = jax.value_and_grad(loss_of)(varying)
        loss, *gradients = sum_packed([loss, *gradients])
        updated = [p - LEARNING_RATE * g for p, g in zip(parameters, gradients, strict=True)]
        return tuple(updated), loss

    def reset(self) -> None:
        """Put the initial weights on the devices."""
        self.parameters = jax.device_put(self.work.weights(), self.replicated)
        self.position = 0

    def _feed(self, batch: Batch) -> list[jax.Array]:
        return [jax.make_array_from_process_local_data(self.sharding, part) for part in batch]

    def run(self, steps: int) -> float:
        """Do steps, and return the last one's loss when all weights are there."""
        loss = None
        for _ in range(steps):
            x, y = self._feed(self.batches[self.position % len(self.batches)])
            self.position += 1
            self.parameters, loss = self.step(self.parameters, x, y)
        jax.block_until_ready(self.parameters)
        return float(loss)


if __name__ == "__main__":
    cluster = this_cluster()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(cluster.chief, cluster.workers, cluster.index)
    serve(Handwritten, ("jax", "jaxlib", "numpy"))
