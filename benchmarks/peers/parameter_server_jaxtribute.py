"""`parameter_server` in jaxtribute, written as a user would."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jt
from benchmarks.peers.parameter_server_cluster import Cluster
from benchmarks.peers.parameter_server_work import (
    EMBEDDING_RATE,
    MLP_RATE,
    WORKERS,
    Embedding,
    Large,
    Mlp,
)
from benchmarks.peers.serve import Session, Timed, serve, timed
from jaxtribute.cli._local_cluster import available_cores, server_thread_counts

SERVER = ("-m", "jaxtribute.cli", "server")
PACKAGES = ("jaxtribute", "jax", "jaxlib", "numpy", "pyzmq")


class Training:
    """The session of one case, from what a subclass makes in `build`."""

    def __init__(self, case: Mapping[str, int], coordinator: Any) -> None:
        self.coordinator = coordinator
        strategy = coordinator.strategy
        with strategy.scope():
            replica_fn = self.build(case)
        batches = self.work.stacked()

        def dataset_fn() -> Any:
            return jt.data.Dataset.from_tensor_slices(batches).repeat()

        self.dataset = coordinator.create_per_worker_dataset(dataset_fn)

        @jt.function
        def worker_fn(iterator: Any) -> jax.Array:
            return strategy.run(replica_fn, args=next(iterator))

        self.worker_fn = worker_fn

    def reset(self) -> None:
        """Assign the initial weights, and start with the first batches."""
        self.assign()
        self.iterator = iter(self.dataset)

    def run(self, steps: int) -> Timed:
        """Schedule closures, wait until all are done, and then compute the loss."""

        def training() -> None:
            for _ in range(steps):
                self.coordinator.schedule(self.worker_fn, args=(self.iterator,))
            self.coordinator.join()

        return timed(training, self.loss)


class OfMlp(Training):
    """The network."""

    def build(self, case: Mapping[str, int]) -> Callable[..., jax.Array]:
        """Make the variables, and return the step."""
        self.work = Mlp(**case)
        w1, b1, w2, b2 = variables = [jt.Variable(value) for value in self.work.weights()]
        self.variables = variables
        optimizer = jt.Optimizer(optax.sgd(MLP_RATE))

        def replica_fn(x: jax.Array, y: jax.Array) -> jax.Array:
            def loss_fn() -> jax.Array:
                logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
                return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

            loss, gradients = jt.value_and_grad(loss_fn, variables)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return replica_fn

    def assign(self) -> None:
        """Assign the initial weights."""
        for variable, value in zip(self.variables, self.work.weights(), strict=True):
            variable.assign(value)

    def loss(self) -> float:
        """The loss of the weights."""
        return self.work.loss([variable.numpy() for variable in self.variables])


class OfEmbedding(Training):
    """The table and its classifier."""

    def build(self, case: Mapping[str, int]) -> Callable[..., jax.Array]:
        """Make the variables, and return the step."""
        self.work = Embedding(**case)
        self.table = table = jt.Variable(np.zeros((self.work.rows, self.work.width), np.float32))
        self.head = w, b = [jt.Variable(value) for value in self.work.head()]
        optimizer = jt.Optimizer(optax.sgd(EMBEDDING_RATE))
        variables = [table, w, b]

        def replica_fn(ids: jax.Array, labels: jax.Array) -> jax.Array:
            def loss_fn() -> jax.Array:
                rows = jt.nn.embedding_lookup(table, ids)
                logits = jnp.mean(rows, axis=1) @ w + b
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            loss, gradients = jt.value_and_grad(loss_fn, variables)()
            optimizer.apply_gradients(zip(gradients, variables, strict=True))
            return loss

        return replica_fn

    def assign(self) -> None:
        """Assign the initial weights."""
        for shard in self.table.variables:
            shard.assign(np.zeros(shard.shape, np.float32))
        for variable, value in zip(self.head, self.work.head(), strict=True):
            variable.assign(value)

    def loss(self) -> float:
        """The loss of the rows that are used."""
        ids, _ = self.work.stacked()
        rows = np.asarray(jt.nn.embedding_lookup(self.table, ids))
        return self.work.loss(rows, *(variable.numpy() for variable in self.head))


class OfClosures:
    """Functions that do nothing, or sleep."""

    def __init__(self, case: Mapping[str, int], coordinator: Any) -> None:
        self.coordinator = coordinator
        seconds = case.get("sleep_ms", 0) / 1e3

        @jt.function
        def nothing() -> None:
            pass

        def sleep() -> None:
            import time

            time.sleep(seconds)

        self.function = sleep if seconds else nothing

    def reset(self) -> None:
        """There is no state."""

    def run(self, steps: int) -> float:
        """Schedule closures, wait for all, and return how many were."""
        for _ in range(steps):
            self.coordinator.schedule(self.function)
        self.coordinator.join()
        return float(steps)


class OfReading:
    """Reading a large variable on the coordinator."""

    def __init__(self, case: Mapping[str, int], coordinator: Any) -> None:
        with coordinator.strategy.scope():
            self.variable = jt.Variable(Large(**case).array())

    def reset(self) -> None:
        """There is nothing to go back to."""

    def run(self, steps: int) -> float:
        """Read, and return the last number of what was read."""
        value = None
        for _ in range(steps):
            value = self.variable.numpy()
        return float(value[-1])


KINDS: dict[str, tuple[Callable[[Mapping[str, int], Any], Session], int]] = {
    "mlp": (OfMlp, 1),
    "embedding": (OfEmbedding, 2),
    "closures": (OfClosures, 1),
    "reading": (OfReading, 1),
}


def with_key() -> dict[str, str]:
    """What lets tasks of a new cluster talk to each other, and nobody else to them."""
    return {"JAXTRIBUTE_CLUSTER_KEY": secrets.token_hex(32)}


def make_coordinator(servers: int) -> Any:
    """The coordinator of the cluster that `TF_CONFIG` describes."""
    strategy = jt.experimental.ParameterServerStrategy(
        jt.cluster_resolver.TFConfigClusterResolver(),
        # Leaves small variables whole, and divides the table between the servers.
        variable_partitioner=jt.experimental.partitioners.MinSizePartitioner(max_shards=servers)
        if servers > 1
        else None,
    )
    return jt.experimental.coordinator.ClusterCoordinator(strategy)


def main(kind: str) -> None:
    """Start the tasks, and serve as their coordinator."""
    make, servers = KINDS[kind]
    threads = server_thread_counts(available_cores(), WORKERS, servers)[0]  # as `launch` has it
    with Cluster(WORKERS, servers, SERVER, {**with_key(), "PJRT_NPROC": str(threads)}):
        coordinator = make_coordinator(servers)
        serve(lambda case: make(case, coordinator), PACKAGES)


if __name__ == "__main__":
    main(sys.argv[1])
