"""`mirrored` in TensorFlow: as its guide on custom training loops writes it, or `--tuned`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from benchmarks.peers.mirrored_work import FEATURES, LEARNING_RATE, REPLICAS, Work
from benchmarks.peers.serve import serve

SUM = tf.distribute.ReduceOp.SUM


class TensorFlow:
    """The session of one case; subclasses say how to feed a batch and how to update."""

    def __init__(self, case: Mapping[str, int], strategy: tf.distribute.Strategy) -> None:
        self.work = Work(**case)
        self.batches = self.work.batches()
        self.strategy = strategy
        with strategy.scope():
            self.variables = [tf.Variable(value) for value in self.work.weights()]
        self.step = tf.function(self._step, input_signature=self._signature())

    def _signature(self) -> list[tf.TensorSpec] | None:
        return None

    def _step(self, x: object, y: object) -> tf.Tensor:
        losses = self.strategy.run(self._replica_step, args=(x, y))
        return self.strategy.reduce(SUM, losses, axis=None)

    def _replica_step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        w1, b1, w2, b2 = self.variables
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(x @ w1 + b1) @ w2 + b2
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=self.work.batch)
        context = tf.distribute.get_replica_context()
        # All gradients in one call: faster here than merging first and reducing afterwards.
        gradients = context.all_reduce(SUM, tape.gradient(loss, self.variables))
        context.merge_call(self._update_all, args=(gradients,))
        return loss

    def _update_all(self, strategy: tf.distribute.Strategy, gradients: list[object]) -> None:
        for variable, gradient in zip(self.variables, gradients, strict=True):
            strategy.extended.update(variable, self._update, args=(gradient,), group=False)

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> None:
        variable.assign_sub(LEARNING_RATE * gradient)

    def _feed(self, values: np.ndarray) -> object:
        size = self.work.per_replica

        def of_replica(context: tf.distribute.experimental.ValueContext) -> tf.Tensor:
            start = context.replica_id_in_sync_group * size
            return tf.constant(values[start : start + size])

        return self.strategy.experimental_distribute_values_from_function(of_replica)

    def reset(self) -> None:
        """Assign the initial weights."""
        for variable, value in zip(self.variables, self.work.weights(), strict=True):
            variable.assign(value)
        self.position = 0

    def run(self, steps: int) -> float:
        """Do steps, and return the last one's loss; a step returns when all of it is done."""
        loss = None
        for _ in range(steps):
            x, y = self.batches[self.position % len(self.batches)]
            self.position += 1
            loss = self.step(self._feed(x), self._feed(y))
        return float(loss)


class Tuned(TensorFlow):
    """The fastest way found: one tensor a batch, split in the graph, and a fused update."""

    def _signature(self) -> list[tf.TensorSpec]:
        batch = self.work.batch
        return [tf.TensorSpec((batch, FEATURES), tf.float32), tf.TensorSpec((batch,), tf.int32)]

    def _step(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        xs, ys = tf.split(x, REPLICAS), tf.split(y, REPLICAS)

        def replica_step() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            # Known while tracing, as each replica of MirroredStrategy is traced by itself.
            replica = int(tf.get_static_value(context.replica_id_in_sync_group))
            return self._replica_step(xs[replica], ys[replica])

        return self.strategy.reduce(SUM, self.strategy.run(replica_step), axis=None)

    def _update(self, variable: tf.Variable, gradient: tf.Tensor) -> None:
        tf.raw_ops.ResourceApplyGradientDescent(
            var=variable.handle, alpha=LEARNING_RATE, delta=gradient
        )

    def _feed(self, values: np.ndarray) -> tf.Tensor:
        return tf.constant(values)


def main(tuned: bool) -> None:
    """Make the strategy on two logical CPU devices, and serve."""
    (cpu,) = tf.config.list_physical_devices("CPU")
    logical = [tf.config.LogicalDeviceConfiguration() for _ in range(REPLICAS)]
    tf.config.set_logical_device_configuration(cpu, logical)
    strategy = tf.distribute.MirroredStrategy(
        [f"CPU:{index}" for index in range(REPLICAS)],
        cross_device_ops=tf.distribute.HierarchicalCopyAllReduce() if tuned else None,
    )
    kind = Tuned if tuned else TensorFlow
    serve(lambda case: kind(case, strategy), ("tensorflow-cpu", "numpy"))


if __name__ == "__main__":
    main("--tuned" in sys.argv[1:])
