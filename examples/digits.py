"""Train a digit classifier with each strategy, by one and the same training function.

Run it with `python examples/digits.py`. For the strategy with several workers it starts itself
again, as `jaxtribute launch --workers 2 examples/digits.py`, which can also be run by hand. With
parameter servers, `jaxtribute launch --workers 2 --ps 2 examples/parameter_server.py` trains the
same model, and another one with an embedding; half-way a worker is killed, which changes nothing.

The data set, 1797 pictures of 8 x 8 pixels, is part of scikit-learn: nothing is downloaded. The
program ends with status 1 if a strategy reaches less than 97 % on pictures it has not seen, and
the embedding less than 94 %.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import jaxtribute as jt

SEED = 2
EPOCHS = 20
BATCH_SIZE = 64
GOALS = {"dense": 0.97, "embedding": 0.94}
WORKERS = 2

Examples = tuple[np.ndarray, np.ndarray]  # pictures, labels


@dataclass(frozen=True)
class Digits:
    train: Examples
    test: Examples

    @classmethod
    def load(cls) -> "Digits":
        pictures, labels = load_digits(return_X_y=True)
        pictures = (pictures / 16).astype(np.float32)
        train_x, test_x, train_y, test_y = train_test_split(
            pictures, labels.astype(np.int32), test_size=361, random_state=SEED, stratify=labels
        )
        return cls((train_x, train_y), (test_x, test_y))


@dataclass(frozen=True)
class Result:
    replicas: int
    steps_per_second: float
    loss: float  # the mean of the last epoch
    accuracy: float


class Classifier(jt.Module):
    """Two layers, which make 64 pixels into 10 scores."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        first, second = jax.random.split(jax.random.key(SEED))
        initial = jax.nn.initializers.he_normal()
        self.w1 = jt.Variable(initial(first, (64, width)), name="w1")
        self.b1 = jt.Variable(jnp.zeros(width), name="b1")
        self.w2 = jt.Variable(initial(second, (width, 10)), name="w2")
        self.b2 = jt.Variable(jnp.zeros(10), name="b2")

    def __call__(self, pictures: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(pictures @ self.w1 + self.b1)
        return hidden @ self.w2 + self.b2


def train(strategy: jt.Strategy, data: Digits, advance: Callable[[], None]) -> Result:
    """Train with whatever strategy, and return how it went. Calls `advance` after each epoch."""
    examples = jt.data.Dataset.from_tensor_slices(data.train)
    train_batches = strategy.experimental_distribute_dataset(
        examples.shuffle(len(examples), seed=SEED).batch(BATCH_SIZE)
    )
    test_batches = strategy.experimental_distribute_dataset(
        jt.data.Dataset.from_tensor_slices(data.test).batch(BATCH_SIZE)
    )
    steps_per_epoch = len(train_batches)
    with strategy.scope():
        model = Classifier()
        learning_rate = optax.cosine_decay_schedule(5e-3, EPOCHS * steps_per_epoch)
        optimizer = jt.Optimizer(optax.adam(learning_rate))
        accuracy = jt.metrics.Accuracy()

    @jt.function
    def train_step(batch):
        def replica_step(pictures, labels):
            def loss_fn():
                losses = optax.softmax_cross_entropy_with_integer_labels(model(pictures), labels)
                return jt.nn.compute_average_loss(losses, global_batch_size=BATCH_SIZE)

            loss, gradients = jt.value_and_grad(loss_fn, model.trainable_variables)()
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    @jt.function
    def test_step(batch):
        def replica_step(pictures, labels):
            accuracy.update_state(labels, jnp.argmax(model(pictures), axis=-1))

        strategy.run(replica_step, args=batch)

    for epoch in range(EPOCHS):
        losses = [train_step(batch) for batch in train_batches]
        jax.block_until_ready(losses)
        if epoch == 0:  # which compiles, and is not counted
            start = time.perf_counter()
        advance()
    seconds = time.perf_counter() - start

    for batch in test_batches:  # of the last one, an odd number, the parts differ in size
        test_step(batch)
    return Result(
        replicas=strategy.num_replicas_in_sync,
        steps_per_second=(EPOCHS - 1) * steps_per_epoch / seconds,
        loss=sum(float(loss) for loss in losses) / steps_per_epoch,
        accuracy=float(accuracy.result()),
    )


def train_here(strategy: jt.Strategy) -> Callable[[Digits, Callable[[], None]], Result]:
    return lambda data, advance: train(strategy, data, advance)


def train_on_workers(data: Digits, advance: Callable[[], None]) -> Result:
    """Start this program on several workers, and return what the first of them tells."""
    return launch([__file__], "worker:0", advance)


def train_with_servers(model: str) -> Callable[[Digits, Callable[[], None]], Result]:
    """Return what starts a program with parameter servers, and returns what its chief tells."""
    program = str(Path(__file__).with_name("parameter_server.py"))
    arguments = ["--ps=2", program, f"--model={model}"]
    return lambda data, advance: launch(arguments, "chief:0", advance)


def launch(arguments: list[str], task: str, advance: Callable[[], None]) -> Result:
    """Run a program on several workers, and return what one of the tasks prints at the end."""
    command = ["-m", "jaxtribute.cli", "launch", f"--workers={WORKERS}", *arguments]
    with subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as launcher:
        printed: list[str] = []
        for line in launcher.stdout:
            printed.append(line)
            if "| epoch" in line:
                advance()
    if launcher.returncode:
        raise RuntimeError(f"The program failed:\n{''.join(printed)}")
    [result] = [line for line in printed if line.startswith(task) and "| {" in line]
    return Result(**json.loads(result[result.index("{") :]))


def work() -> None:
    """Train as one of the workers."""
    strategy = jt.MultiWorkerMirroredStrategy()  # before anything else uses JAX
    chief = not strategy.cluster_resolver.task_id
    epochs = iter(range(1, EPOCHS + 1))

    def advance() -> None:
        epoch = next(epochs)
        if chief:
            print(f"epoch {epoch} of {EPOCHS}")

    result = train(strategy, Digits.load(), advance)
    if chief:
        print(json.dumps(asdict(result)))


def missed_goal(name: str, result: Result) -> bool:
    return result.accuracy < GOALS["embedding" if "embedding" in name else "dense"]


def main() -> int:
    if "TF_CONFIG" in os.environ:
        work()
        return 0
    jt.config.set_logical_cpu_devices(2)
    strategies = {
        "none (default)": train_here(jt.get_strategy()),
        "OneDeviceStrategy": train_here(jt.OneDeviceStrategy("CPU:0")),
        "MirroredStrategy": train_here(jt.MirroredStrategy(["CPU:0", "CPU:1"])),
        "MultiWorkerMirroredStrategy": train_on_workers,
        "ParameterServerStrategy": train_with_servers("dense"),
        "the same, with an embedding": train_with_servers("embedding"),
    }
    console = Console()
    data = Digits.load()
    results: dict[str, Result] = {}
    with Progress(
        TextColumn("{task.description:<27}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs"),
        TimeElapsedColumn(),
        console=console,
    ) as progress:
        tasks = {name: progress.add_task(name, total=EPOCHS, start=False) for name in strategies}
        for name, train_with in strategies.items():
            task = tasks[name]
            progress.start_task(task)
            results[name] = train_with(data, lambda task=task: progress.advance(task))

    table = Table(title=f"{len(data.train[1])} digits, {EPOCHS} epochs, batches of {BATCH_SIZE}")
    table.add_column("strategy")
    for heading in ("replicas", "steps/s", "loss", "test accuracy"):
        table.add_column(heading, justify="right")
    for name, result in results.items():
        style = "bold red" if missed_goal(name, result) else "green"
        table.add_row(
            name,
            str(result.replicas),
            f"{result.steps_per_second:.0f}",
            f"{result.loss:.4f}",
            f"[{style}]{result.accuracy:.1%}[/]",
        )
    console.print(table)
    missed = [name for name, result in results.items() if missed_goal(name, result)]
    if missed:
        console.print(f"[bold red]Less accurate than it should be:[/] {', '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
