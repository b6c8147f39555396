"""Train asynchronously with parameter servers, and lose a worker on the way.

Run it on a chief, two workers and two parameter servers, all on this machine:

    jaxtribute launch --workers 2 --ps 2 examples/parameter_server.py

The chief runs this program: it creates the variables, which live on the servers, and schedules
steps, which run on whichever worker is free. Half-way it kills a worker. Nothing is lost: what the
worker had not finished is run by the other one, and each step is counted once. The launcher starts
the worker again, and it takes part again.

`--model dense` is a classifier of digits. `--model embedding` sees them as words: each of the 64
pixels is light, grey or dark, and what it is is looked up in a table that is divided between the
servers; a step fetches the rows it needs.
"""

import argparse
import json
import os
import signal
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jt

EPOCHS = 20
BATCH_SIZE = 64
LEVELS = 3  # of the grey of a pixel


class Classifier(jt.Module):
    """Two layers, which make numbers into 10 scores."""

    def __init__(self, inputs: int = 64, width: int = 512) -> None:
        super().__init__()
        first, second = jax.random.split(jax.random.key(2))
        initial = jax.nn.initializers.he_normal()
        self.w1 = jt.Variable(initial(first, (inputs, width)), name="w1")
        self.b1 = jt.Variable(jnp.zeros(width), name="b1")
        self.w2 = jt.Variable(initial(second, (width, 10)), name="w2")
        self.b2 = jt.Variable(jnp.zeros(10), name="b2")

    @property
    def trained(self) -> list[jt.Variable | jt.ShardedVariable]:
        return [self.w1, self.b1, self.w2, self.b2]

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return jax.nn.relu(inputs @ self.w1 + self.b1) @ self.w2 + self.b2


class Embedding(jt.Module):
    """The same, of what is looked up for each pixel and its grey."""

    def __init__(self) -> None:
        super().__init__()
        table = 0.1 * jax.random.normal(jax.random.key(2), (64 * LEVELS, 32))
        self.table = jt.Variable(table, name="table")
        self.classifier = Classifier(32, 128)

    @property
    def trained(self) -> list[jt.Variable | jt.ShardedVariable]:
        return [self.table, *self.classifier.trained]

    def __call__(self, pixels: jax.Array) -> jax.Array:
        words = jnp.arange(64) * LEVELS + jnp.minimum(pixels * LEVELS, LEVELS - 1).astype(int)
        return self.classifier(jt.nn.embedding_lookup(self.table, words, combiner="sum"))


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    pixels, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        (pixels / 16).astype(np.float32),
        labels.astype(np.int32),
        test_size=361,
        random_state=2,
        stratify=labels,
    )
    return (train_x, train_y), (test_x, test_y)


def train(coordinator: jt.coordinator.ClusterCoordinator, kind: str, kill: bool) -> dict[str, Any]:
    """Train a model, and return how it went."""
    strategy = coordinator.strategy
    examples, (test_x, test_y) = load()
    steps_per_epoch = len(examples[1]) // BATCH_SIZE
    steps = EPOCHS * steps_per_epoch
    with strategy.scope():
        model = Classifier() if kind == "dense" else Embedding()
        optimizer = jt.Optimizer(optax.adam(optax.cosine_decay_schedule(5e-3, steps)))
    trained = model.trained

    @jt.function
    def worker_step(iterator):
        def replica_step(pixels, labels):
            def loss_fn():
                losses = optax.softmax_cross_entropy_with_integer_labels(model(pixels), labels)
                return jt.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)

            loss, gradients = jt.value_and_grad(loss_fn, trained)()
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
            return loss

        return strategy.run(replica_step, args=next(iterator))

    def dataset_fn():  # called on each worker, which shuffles in an order of its own
        dataset = jt.data.Dataset.from_tensor_slices(examples)
        return dataset.shuffle(len(examples[1])).repeat().batch(BATCH_SIZE)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    start = time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        losses = [
            coordinator.schedule(worker_step, args=(iterator,)) for _ in range(steps_per_epoch)
        ]
        if kill and epoch == EPOCHS // 2:
            victim = int(coordinator.schedule(os.getpid).fetch())
            os.kill(victim, signal.SIGKILL)
            print(f"killed the worker of process {victim}")
        coordinator.join()
        if epoch == 1:  # in which workers compile, and which is not counted
            start = time.perf_counter()
        loss = float(np.mean(coordinator.fetch(losses)))
        print(f"epoch {epoch} of {EPOCHS}")
        jt.train.report_progress(epoch * steps_per_epoch, steps, loss=loss)
    seconds = time.perf_counter() - start
    predictions = jnp.argmax(model(jnp.asarray(test_x)), axis=-1)
    if int(optimizer.iterations) != steps:
        raise RuntimeError(f"{steps} steps were scheduled, and {optimizer.iterations} counted.")
    return {
        "replicas": len(strategy.worker_addresses),
        "steps_per_second": (EPOCHS - 1) * steps_per_epoch / seconds,
        "loss": loss,
        "accuracy": float(np.mean(predictions == test_y)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=["dense", "embedding"], default="dense")
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    strategy = jt.experimental.ParameterServerStrategy(
        jt.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=jt.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=16 << 10, max_shards=2
        ),
    )
    coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
    print(json.dumps(train(coordinator, arguments.model, arguments.kill)))


if __name__ == "__main__":
    main()
