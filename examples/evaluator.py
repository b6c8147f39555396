"""Train on two workers, and evaluate each checkpoint in a process beside them.

    jaxtribute launch --workers 2 --evaluator examples/evaluator.py

All three processes run this program. The workers train a classifier of digits, and save after each
epoch. The evaluator restores what they save, on one device, and evaluates it while they go on: see
`results.jsonl`, and `tensorboard --logdir` for curves. It may be killed and started again. At the
end the workers evaluate what they have trained themselves, which gives the same.
"""

import argparse
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jt

BATCH_SIZE = 64
DIRECTORY = Path(tempfile.gettempdir()) / "jaxtribute-evaluator"


class Classifier(jt.Module):
    """Two layers, which make 64 pixels into 10 scores."""

    def __init__(self) -> None:
        super().__init__()
        first, second = jax.random.split(jax.random.key(0))
        initial = jax.nn.initializers.he_normal()
        self.w1 = jt.Variable(initial(first, (64, 128)), name="w1")
        self.w2 = jt.Variable(initial(second, (128, 10)), name="w2")

    def __call__(self, pixels: jax.Array) -> jax.Array:
        return jax.nn.relu(pixels @ self.w1) @ self.w2


def load() -> list[np.ndarray]:
    pixels, labels = load_digits(return_X_y=True)
    pixels, labels = (pixels / 16).astype(np.float32), labels.astype(np.int32)
    return train_test_split(pixels, labels, test_size=361, random_state=2, stratify=labels)


def train(directory: Path, epochs: int) -> None:
    strategy = jt.MultiWorkerMirroredStrategy()
    pixels, test_pixels, labels, test_labels = load()
    with strategy.scope():
        model = Classifier()
        optimizer = jt.Optimizer(optax.adam(1e-3))
        accuracy = jt.metrics.Accuracy()
    trained = [model.w1, model.w2]
    checkpoint = jt.train.Checkpoint(model=model, optimizer=optimizer)
    manager = jt.train.CheckpointManager(checkpoint, directory, max_to_keep=3)

    def replica_step(x, y):
        def loss_fn():
            losses = optax.softmax_cross_entropy_with_integer_labels(model(x), y)
            return jt.nn.compute_average_loss(losses)

        loss, gradients = jt.value_and_grad(loss_fn, trained)()
        optimizer.apply_gradients(zip(gradients, trained, strict=True))
        return loss

    @jt.function
    def step(x, y):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(x, y)), axis=None)

    @jt.function
    def test_step(x, y):
        def replica_step(x, y):
            accuracy.update_state(y, jnp.argmax(model(x), axis=-1))

        strategy.run(replica_step, args=(x, y))

    examples = jt.data.Dataset.from_tensor_slices((pixels, labels)).shuffle(2000, seed=0)
    batches = strategy.experimental_distribute_dataset(examples.batch(BATCH_SIZE))
    steps = epochs * -(-len(labels) // BATCH_SIZE)
    for epoch in range(1, epochs + 1):
        for x, y in batches:
            loss = step(x, y)
            jt.train.report_progress(int(optimizer.iterations), steps, loss=loss)  # for the display
        manager.save()
        if strategy.extended.should_checkpoint:
            print(f"epoch {epoch} of {epochs}: loss {float(loss):.4f}")
    manager.wait_until_finished()
    # Every example counts once, on any number of workers.
    tests = jt.data.Dataset.from_tensor_slices((test_pixels, test_labels)).batch(BATCH_SIZE)
    for x, y in strategy.experimental_distribute_dataset(tests):
        test_step(x, y)
    reached = float(accuracy.result())
    if strategy.extended.should_checkpoint:
        print(f"trained to accuracy {reached:.4f}")


def evaluate(directory: Path) -> None:
    _, pixels, _, labels = load()
    model = Classifier()  # without a strategy: on one device

    @jt.function
    def scores(x):
        return model(x)

    def measure() -> dict[str, float]:
        found = scores(pixels)
        losses = optax.softmax_cross_entropy_with_integer_labels(found, labels)
        accuracy = jnp.mean(jnp.argmax(found, axis=-1) == labels)
        return {"loss": float(jnp.mean(losses)), "accuracy": float(accuracy)}

    jt.train.SidecarEvaluator(jt.train.Checkpoint(model=model), measure, directory).start()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, nargs="?", default=DIRECTORY)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    if jt.cluster_resolver.TFConfigClusterResolver().task_type == "evaluator":
        evaluate(arguments.directory)
    else:
        train(arguments.directory, arguments.epochs)


if __name__ == "__main__":
    main()
