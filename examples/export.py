"""Train a classifier on two devices, save it, and use it elsewhere.

Run it with `python examples/export.py`, or `python examples/export.py DIRECTORY` to keep the model.

The saved model is called by a process that knows nothing of this program, and then trained further
on one device, as if nothing had happened.
"""

import subprocess
import sys
import tempfile

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jt


class Classifier(jt.Module):
    """Tells on which side of a circle a point lies."""

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.hidden = jt.Variable(rng.normal(size=(2, 16)).astype(np.float32), name="hidden")
        self.shift = jt.Variable(jnp.zeros(16), name="shift")
        self.out = jt.Variable(rng.normal(size=16).astype(np.float32) / 4, name="out")

    @jt.function(input_signature=[jt.TensorSpec([None, 2], name="points")])
    def __call__(self, points):
        hidden = jnp.tanh(points @ self.hidden.value() + self.shift.value())
        return hidden @ self.out.value()


def train(strategy, model, steps):
    """Train a model, be it a `Classifier` or one that was loaded; return the last loss."""
    variables = list(model.trainable_variables)
    with strategy.scope():
        optimizer = jt.Optimizer(optax.adam(0.03))

    def replica_step(points, inside):
        def loss_fn():
            losses = optax.sigmoid_binary_cross_entropy(model(points), inside)
            return jt.nn.compute_average_loss(losses)

        loss, gradients = jt.value_and_grad(loss_fn, variables)()
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    @jt.function
    def step(points, inside):
        return strategy.reduce("SUM", strategy.run(replica_step, args=(points, inside)), axis=None)

    data = jt.data.Dataset.from_tensor_slices(circle(1024)).batch(64).repeat()
    batches = iter(strategy.experimental_distribute_dataset(data))
    for _ in range(steps):
        loss = step(*next(batches))
    batches.close()
    return float(loss)


def circle(count):
    points = np.random.default_rng(1).uniform(-1, 1, size=(count, 2)).astype(np.float32)
    return points, (np.sum(points**2, axis=1) < 0.5).astype(np.float32)


def main(directory: str) -> None:
    path = f"{directory}/circle"

    mirrored = jt.MirroredStrategy(["CPU:0", "CPU:1"])
    with mirrored.scope():
        model = Classifier()
    print(f"trained on two devices: loss {train(mirrored, model, 150):.3f}")
    jt.saved_model.save(model, path)

    # It has a new process call the model, with nothing but JAX and NumPy.
    command = [sys.executable, "-m", "jaxtribute.cli", "serve-check", path]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    print(answer.split("\n\n")[1])

    one = jt.OneDeviceStrategy("CPU:0")
    with one.scope():
        loaded = jt.saved_model.load(path)
    print(f"trained further on one: loss {train(one, loaded, 150):.3f}")
    points, inside = circle(1024)
    correct = (np.asarray(loaded.signatures["serving_default"](points=points)) > 0) == inside
    print(f"accuracy {np.mean(correct):.1%}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as directory:
            main(directory)
