"""Train asynchronously with parameter servers, and lose a worker on the way.

Run it on a chief, two workers and two parameter servers, all on this machine:

    jaxtribute launch --workers 2 --ps 2 examples/parameter_server.py

The chief runs this program: it creates the variables, which live on the servers, and schedules
steps, which run on whichever worker is free. Half-way it kills a worker. Nothing is lost: what the
worker had not finished is run by the other one, and each step is counted once. The launcher starts
the worker again, and it takes part again.

The first model is a classifier of digits. The second one sees them as words: each of the 64 pixels
has one of 17 values, and each pair is looked up in a table that is divided between the servers.
"""

import argparse
import json
import os
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jt

EPOCHS = 20
BATCH_SIZE = 64
LEVELS = 17  # values of a pixel
WIDTH = 128


class Classifier(jt.Module):
    """Two layers, which make numbers into 10 scores."""

    def __init__(self, inputs: int, seed: int) -> None:
        super().__init__()
        first, second = jax.random.split(jax.random.key(seed))
        initial = jax.nn.initializers.he_normal()
        self.w1 = jt.Variable(initial(first, (inputs, WIDTH)), name="w1")
        self.b1 = jt.Variable(jnp.zeros(WIDTH), name="b1")
        self.w2 = jt.Variable(initial(second, (WIDTH, 10)), name="w2")
        self.b2 = jt.Variable(jnp.zeros(10), name="b2")

    def __call__(self, inputs: jax.Array) -> jax.Array:
        return jax.nn.relu(inputs @ self.w1 + self.b1) @ self.w2 + self.b2


class Words(jt.Module):
    """The same, of what is looked up for each pixel and its value."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        table = 0.1 * jax.random.normal(jax.random.key(seed), (64 * LEVELS, 32))
        self.table = jt.Variable(table, name="table")  # divided between the servers
        self.classifier = Classifier(32, seed)

    @property
    def trained(self) -> list:
        return [self.table, *self.classifier.trainable_variables]

    def __call__(self, pixels: jax.Array) -> jax.Array:
        words = jnp.arange(64) * LEVELS + pixels.astype(jnp.int32)
        return self.classifier(jt.nn.embedding_lookup(self.table, words, combiner="sum"))


def load() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    pixels, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels.astype(np.float32), labels.astype(np.int32), test_size=361, random_state=2
    )
    return (train_x, train_y), (test_x, test_y)


def train(coordinator, model, trained, scale: float, kill: bool) -> dict[str, float]:
    """Train a model, and return how it went."""
    strategy = coordinator.strategy
    examples, (test_x, test_y) = load()
    steps = EPOCHS * (len(examples[1]) // BATCH_SIZE)
    with strategy.scope():
        optimizer = jt.Optimizer(optax.adam(optax.cosine_decay_schedule(5e-3, steps)))

    @jt.function
    def worker_step(iterator):
        def replica_step(pixels, labels):
            def loss_fn():
                scores = model(pixels * scale)
                losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
                return jt.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)

            loss, gradients = jt.value_and_grad(loss_fn, trained)()
            optimizer.apply_gradients(zip(gradients, trained, strict=True))
            return loss

        return strategy.run(replica_step, args=next(iterator))

    def dataset_fn():  # called on each worker
        dataset = jt.data.Dataset.from_tensor_slices(examples)
        return dataset.shuffle(len(examples[1])).repeat().batch(BATCH_SIZE)

    iterator = iter(coordinator.create_per_worker_dataset(dataset_fn))
    start = time.perf_counter()
    for step in range(steps):
        loss = coordinator.schedule(worker_step, args=(iterator,))
        if step == steps // 2:
            if kill:
                victim = coordinator.schedule(os.getpid).fetch()
                os.kill(int(victim), signal.SIGKILL)
                print(f"step {step}: killed a worker, process {victim}")
        if step % 50 == 49:
            jt.train.report_progress(step + 1, steps, loss=loss.fetch())
    coordinator.join()
    seconds = time.perf_counter() - start
    predictions = jnp.argmax(model(test_x * scale), axis=-1)
    return {
        "steps": int(optimizer.iterations),
        "steps_per_second": steps / seconds,
        "loss": float(loss.fetch()),
        "accuracy": float(np.mean(predictions == test_y)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, default=True)
    arguments = parser.parse_args()
    strategy = jt.experimental.ParameterServerStrategy(
        jt.cluster_resolver.TFConfigClusterResolver(),
        variable_partitioner=jt.experimental.partitioners.MinSizePartitioner(
            min_shard_bytes=64 * 1024, max_shards=2
        ),
    )
    coordinator = jt.experimental.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        dense, words = Classifier(64, seed=2), Words(seed=2)
    print(f"table: {[shard.device for shard in words.table.variables]}")
    results = {
        "dense": train(coordinator, dense, dense.trainable_variables, 1 / 16, arguments.kill),
        "embedding": train(coordinator, words, words.trained, 1.0, arguments.kill),
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
