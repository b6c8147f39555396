"""Train from text files, stop in the middle of an epoch, and go on elsewhere as if nothing were.

Run it with `python examples/input_pipeline.py`.

The data set, 178 wines with 13 measurements each, is part of scikit-learn. It is written to four
CSV files first; from there on the program knows nothing but the files. It trains twice: in one go
on two devices, and in two parts, of which the second runs on one device. Both see the same
examples, in the same order, with the same random noise, and end with the same weights.
"""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_wine

import jaxtribute as jt

EPOCHS = 20
BATCH_SIZE = 24
STOP_AFTER = 50  # steps; an epoch has 8, so this is in the middle of the seventh
NOISE = 0.2


def write_files(folder: Path) -> None:
    features, labels = load_wine(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    for number in range(4):
        rows = zip(features[number::4], labels[number::4], strict=True)
        lines = [",".join([str(label), *(f"{x:.4f}" for x in row)]) for row, label in rows]
        (folder / f"wine-{number}.csv").write_text("\n".join(lines) + "\n")


def parse(lines: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turn a batch of lines into features and labels."""
    table = np.array([line.split(b",") for line in lines]).astype(np.float32)
    return table[:, 1:], table[:, 0].astype(np.int32)


def add_noise(features: np.ndarray, labels: np.ndarray, key: jax.Array):
    """Change a batch a little. The key is another one for each batch and epoch."""
    return features + NOISE * jax.random.normal(key, features.shape), labels


def make_dataset(folder: Path) -> jt.data.Dataset:
    files = jt.data.Dataset.list_files(str(folder / "wine-*.csv"), shuffle=False)
    # Everyone goes through the same global batches. By default each worker would read some of the
    # files, and make batches of what it finds there.
    options = jt.data.Options()
    options.experimental_distribute.auto_shard_policy = jt.data.AutoShardPolicy.DATA
    return (
        files.interleave(jt.data.TextLineDataset, cycle_length=4)
        .shuffle(200, seed=0)  # lines, which are small; another order in each epoch
        .batch(BATCH_SIZE)
        .map(parse)  # after `batch`: one call for 24 lines
        .map(add_noise, seed=1)
        .repeat(EPOCHS)
        .with_options(options)
    )


class Training:
    """A classifier, and how far its training has come."""

    def __init__(self, strategy: jt.Strategy, folder: Path) -> None:
        self.strategy = strategy
        batches = strategy.experimental_distribute_dataset(make_dataset(folder))
        self.input = iter(batches)
        self.steps = 0
        with strategy.scope():
            self.weights = jt.Variable(jnp.zeros((13, 3)), name="weights")
            self.offsets = jt.Variable(jnp.zeros(3), name="offsets")
            self.optimizer = jt.Optimizer(optax.sgd(0.3))
            self.loss = jt.metrics.Mean()
            self.accuracy = jt.metrics.Accuracy()
        self.variables = [self.weights, self.offsets]

    def replica_step(self, features, labels):
        def loss_fn():
            scores = features @ self.weights + self.offsets
            losses = optax.softmax_cross_entropy_with_integer_labels(scores, labels)
            mean = jt.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)
            return mean, (losses, scores)

        (_, (losses, scores)), gradients = jt.value_and_grad(
            loss_fn, self.variables, has_aux=True
        )()
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        self.loss.update_state(losses)
        self.accuracy.update_state(labels, jnp.argmax(scores, axis=-1))

    def run(self, steps: int | None = None) -> None:
        """Train for that many steps, or to the end."""
        step = jt.function(lambda batch: self.strategy.run(self.replica_step, args=batch))
        self.loss.reset_state()
        self.accuracy.reset_state()
        while steps is None or self.steps < steps:
            batch = next(self.input, None)
            if batch is None:
                break
            step(batch)
            self.steps += 1
        print(
            f"  devices: {self.strategy.num_replicas_in_sync}, up to step {self.steps:3}: "
            f"{int(self.accuracy.count.value())} examples, mean loss "
            f"{float(self.loss.result()):.3f}, accuracy {float(self.accuracy.result()):.1%}"
        )

    def save(self, path: Path) -> None:
        saved = {
            "input": self.input.get_state(),
            "steps": self.steps,
            "variables": [variable.numpy().tolist() for variable in self.variables],
        }
        path.write_text(json.dumps(saved))

    def load(self, path: Path) -> None:
        saved = json.loads(path.read_text())
        self.input.set_state(saved["input"])
        self.steps = saved["steps"]
        for variable, value in zip(self.variables, saved["variables"], strict=True):
            variable.assign(jnp.array(value, jnp.float32))


def main() -> None:
    jt.config.set_logical_cpu_devices(2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        print("a line:", (folder / "wine-0.csv").read_text().splitlines()[0][:40], "...")

        print("in one go:")
        whole = Training(jt.MirroredStrategy(["CPU:0", "CPU:1"]), folder)
        whole.run()

        print("in two parts:")
        first = Training(jt.MirroredStrategy(["CPU:0", "CPU:1"]), folder)
        first.run(STOP_AFTER)
        first.save(folder / "saved.json")
        first.input.close()
        print(f"  stopped; saved in {(folder / 'saved.json').stat().st_size} bytes")
        second = Training(jt.OneDeviceStrategy("CPU:0"), folder)
        second.load(folder / "saved.json")
        second.run()

    difference = np.max(np.abs(whole.weights.numpy() - second.weights.numpy()))
    print(f"the weights differ by at most {difference:.6f}")


if __name__ == "__main__":
    main()
