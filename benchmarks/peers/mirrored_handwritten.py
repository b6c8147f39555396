"""`mirrored` in plain JAX: a sharded, compiled step with donated weights, never waiting."""

from __future__ import annotations

import os
from collections.abc import Mapping

# Read when the CPU client starts. In-process collectives need a thread for each device besides
# those that compute, or they wait for each other for ever on a machine with few cores.
os.environ["PJRT_NPROC"] = "8"

import jax
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.peers.mirrored_work import LEARNING_RATE, REPLICAS, Work
from benchmarks.peers.serve import serve

AXIS = "replica"
Parameters = tuple[jax.Array, jax.Array, jax.Array, jax.Array]


class Handwritten:
    """The session of one case."""

    def __init__(self, case: Mapping[str, int]) -> None:
        self.work = Work(**case)
        self.batches = self.work.batches()
        mesh = Mesh(jax.devices("cpu")[:REPLICAS], (AXIS,))
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
        loss, gradients = jax.lax.psum(jax.value_and_grad(loss_of)(varying), AXIS)
        updated = jax.tree.map(lambda p, g: p - LEARNING_RATE * g, parameters, gradients)
        return updated, loss

    def reset(self) -> None:
        """Put the initial weights on both devices."""
        self.parameters = jax.device_put(self.work.weights(), self.replicated)
        self.position = 0

    def run(self, steps: int) -> float:
        """Do steps, and return the last one's loss when all weights are there."""
        loss = None
        for _ in range(steps):
            batch = self.batches[self.position % len(self.batches)]
            self.position += 1
            x, y = jax.device_put(batch, self.sharding)
            self.parameters, loss = self.step(self.parameters, x, y)
        jax.block_until_ready(self.parameters)
        return float(loss)


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", REPLICAS)
    serve(Handwritten, ("jax", "jaxlib", "numpy"))
