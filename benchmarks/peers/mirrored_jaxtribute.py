"""`mirrored` in jaxtribute, written as a user would."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax

import jaxtribute as jt
from benchmarks.peers.mirrored_work import LEARNING_RATE, REPLICAS, Work
from benchmarks.peers.serve import serve


class Jaxtribute:
    """The session of one case."""

    def __init__(self, case: Mapping[str, int], strategy: Any) -> None:
        self.work = Work(**case)
        self.batches = self.work.batches()
        self.strategy = strategy
        with strategy.scope():
            w1, b1, w2, b2 = self.variables = [jt.Variable(w) for w in self.work.weights()]
            optimizer = jt.Optimizer(optax.sgd(LEARNING_RATE))

        def replica_step(x: jax.Array, y: jax.Array) -> jax.Array:
            def loss_fn() -> jax.Array:
                logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
                losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
                return jt.nn.compute_average_loss(losses, global_batch_size=self.work.batch)

            loss, gradients = jt.value_and_grad(loss_fn, self.variables)()
            optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
            return loss

        @jt.function
        def train_step(x: Any, y: Any) -> jax.Array:
            losses = strategy.run(replica_step, args=(x, y))
            return strategy.reduce("SUM", losses, axis=None)

        self.step = train_step

    def _feed(self, values: np.ndarray) -> Any:
        size = self.work.per_replica

        def of_replica(context: Any) -> np.ndarray:
            start = context.replica_id_in_sync_group * size
            return values[start : start + size]

        return self.strategy.experimental_distribute_values_from_function(of_replica)

    def reset(self) -> None:
        """Assign the initial weights."""
        for variable, value in zip(self.variables, self.work.weights(), strict=True):
            variable.assign(value)
        self.position = 0

    def run(self, steps: int) -> float:
        """Do steps, and return the last one's loss when all weights are there."""
        loss = None
        for _ in range(steps):
            x, y = self.batches[self.position % len(self.batches)]
            self.position += 1
            loss = self.step(self._feed(x), self._feed(y))
        copies = [copy for variable in self.variables for copy in variable.values]
        jax.block_until_ready([copy.read_value() for copy in copies])
        return float(loss)


if __name__ == "__main__":
    devices = [f"CPU:{index}" for index in range(REPLICAS)]
    mirrored = jt.MirroredStrategy(devices)
    serve(lambda case: Jaxtribute(case, mirrored), ("jaxtribute", "jax", "jaxlib", "numpy"))
