"""`parameter_server` in TensorFlow, as its guide on custom training loops writes it.

Updates are the ops that the servers have for them, without a Keras optimizer around them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["GRPC_FAIL_FAST"] = "use_caller"

import tensorflow as tf

from benchmarks.peers.parameter_server_cluster import Cluster
from benchmarks.peers.parameter_server_work import (
    EMBEDDING_RATE,
    MLP_RATE,
    WORKERS,
    Embedding,
    Large,
    Mlp,
)
from benchmarks.peers.serve import Session, serve, timed

Coordinator = tf.distribute.coordinator.ClusterCoordinator


class Training:
    """The session of one case; subclasses have variables, `replica_fn` and a loss."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.strategy = coordinator.strategy
        batches = self.work.stacked()

        def dataset_fn() -> tf.data.Dataset:
            # Whole batches are sliced from the arrays, which is faster than batching examples.
            return tf.data.Dataset.from_tensor_slices(batches).repeat().prefetch(2)

        self.dataset = coordinator.create_per_worker_dataset(dataset_fn)

        @tf.function
        def worker_fn(iterator: tf.data.Iterator) -> tf.Tensor:
            return self.strategy.run(self.replica_fn, args=next(iterator))

        self.worker_fn = worker_fn

    def reset(self) -> None:
        """Assign the initial weights, and start with the first batches."""
        self.assign()
        self.iterator = iter(self.dataset)

    def run(self, steps: int) -> object:
        """Schedule closures, wait until all are done, and then compute the loss."""

        def training() -> None:
            for _ in range(steps):
                self.coordinator.schedule(self.worker_fn, args=(self.iterator,))
            self.coordinator.join()

        return timed(training, self.loss)


class OfMlp(Training):
    """The network."""

    def __init__(self, case: Mapping[str, int], coordinator: Coordinator) -> None:
        self.work = Mlp(**case)
        with coordinator.strategy.scope():
            self.variables = [tf.Variable(value) for value in self.work.weights()]
        super().__init__(coordinator)

    def replica_fn(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        """One step."""
        w1, b1, w2, b2 = self.variables
        with tf.GradientTape() as tape:
            logits = tf.nn.relu(x @ w1 + b1) @ w2 + b2
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
            loss = tf.reduce_mean(losses)
        descend(MLP_RATE, self.variables, tape.gradient(loss, self.variables))
        return loss

    def assign(self) -> None:
        """Assign the initial weights."""
        for variable, value in zip(self.variables, self.work.weights(), strict=True):
            variable.assign(value)

    def loss(self) -> float:
        """The loss of the weights."""
        return self.work.loss([variable.numpy() for variable in self.variables])


class OfEmbedding(Training):
    """The table and its classifier."""

    def __init__(self, case: Mapping[str, int], coordinator: Coordinator) -> None:
        self.work = Embedding(**case)
        with coordinator.strategy.scope():
            self.table = tf.Variable(tf.zeros((self.work.rows, self.work.width)))
            self.head = [tf.Variable(value) for value in self.work.head()]
        super().__init__(coordinator)

    def replica_fn(self, ids: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """One step."""
        w, b = self.head
        variables = [*self.table.variables, w, b]
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(self.table, ids)
            logits = tf.reduce_mean(rows, axis=1) @ w + b
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        descend(EMBEDDING_RATE, variables, tape.gradient(loss, variables))
        return loss

    def assign(self) -> None:
        """Assign the initial weights."""
        for shard in self.table.variables:
            shard.assign(tf.zeros(shard.shape))
        for variable, value in zip(self.head, self.work.head(), strict=True):
            variable.assign(value)

    def loss(self) -> float:
        """The loss of the rows that are used."""
        ids, _ = self.work.stacked()
        rows = tf.nn.embedding_lookup(self.table, ids)
        return self.work.loss(rows.numpy(), *(variable.numpy() for variable in self.head))


def descend(
    rate: float,
    variables: Sequence[tf.Variable],
    gradients: Sequence[tf.Tensor | tf.IndexedSlices],
) -> None:
    """Do a step of gradient descent, on the servers."""
    for variable, gradient in zip(variables, gradients, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            variable.scatter_sub(tf.IndexedSlices(rate * gradient.values, gradient.indices))
        else:
            variable.assign_sub(rate * gradient)


class OfClosures:
    """Functions that do nothing; they are traced, as TensorFlow schedules no others."""

    def __init__(self, case: Mapping[str, int], coordinator: Coordinator) -> None:
        self.coordinator = coordinator

        @tf.function
        def nothing() -> None:
            pass

        self.nothing = nothing

    def reset(self) -> None:
        """There is no state."""

    def run(self, steps: int) -> float:
        """Schedule closures, wait for all, and return how many were."""
        for _ in range(steps):
            self.coordinator.schedule(self.nothing)
        self.coordinator.join()
        return float(steps)


class OfReading:
    """Reading a large variable on the coordinator."""

    def __init__(self, case: Mapping[str, int], coordinator: Coordinator) -> None:
        with coordinator.strategy.scope():
            self.variable = tf.Variable(Large(**case).array())

    def reset(self) -> None:
        """There is nothing to go back to."""

    def run(self, steps: int) -> float:
        """Read, and return the last number of what was read."""
        value = None
        for _ in range(steps):
            value = self.variable.numpy()
        return float(value[-1])


KINDS: dict[str, tuple[Callable[[Mapping[str, int], Coordinator], Session], int]] = {
    "mlp": (OfMlp, 1),
    "embedding": (OfEmbedding, 2),
    "closures": (OfClosures, 1),
    "reading": (OfReading, 1),
}


def coordinate(kind: str) -> None:
    """Start the tasks, and serve as their coordinator."""
    make, servers = KINDS[kind]
    with Cluster(WORKERS, servers, ("-m", "benchmarks.peers.parameter_server_tensorflow")):
        strategy = tf.distribute.ParameterServerStrategy(
            tf.distribute.cluster_resolver.TFConfigClusterResolver(),
            # Leaves small variables whole, and divides the table between the servers.
            tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=servers),
        )
        coordinator = Coordinator(strategy)
        serve(lambda case: make(case, coordinator), ("tensorflow-cpu", "numpy"))


def wait_for_work() -> None:
    """Be the task that `TF_CONFIG` names."""
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol="grpc",
    )
    server.join()


if __name__ == "__main__":
    coordinate(sys.argv[1]) if sys.argv[1:] else wait_for_work()
