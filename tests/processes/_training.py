"""What is trained on one device and on several workers alike, for the results to be compared.

Each function takes a strategy, and returns something that can be written as JSON. All workers
return the same, which is what one device returns.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax

import jaxtribute as jt
from tests._transformations import User

FEATURES = 3
BATCH = 8


def rows(count: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(5)
    x = generator.normal(size=(count, FEATURES)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5]) + generator.normal(size=count)).astype(np.float32)
    return x, y


def regression(strategy: jt.Strategy, count: int, compiled: bool) -> dict[str, Any]:
    """Two epochs with momentum and metrics; `count` decides how small the last batch is."""
    with strategy.scope():
        w = jt.Variable(np.full(FEATURES, 0.5, np.float32), name="w")
        b = jt.Variable(0.0, name="b")
        optimizer = jt.Optimizer(optax.sgd(0.1, momentum=0.5))
        mean_loss, seen = jt.metrics.Mean(), jt.metrics.Sum()

    def replica_step(x: Any, y: Any) -> Any:
        def loss_fn() -> Any:
            squares = (x @ w.value() + b - y) ** 2
            return jt.nn.compute_average_loss(squares, global_batch_size=BATCH), squares

        (loss, squares), gradients = jt.value_and_grad(loss_fn, [w, b], has_aux=True)()
        optimizer.apply_gradients(zip(gradients, [w, b], strict=True))
        mean_loss.update_state(squares)
        seen.update_state(jnp.ones(y.shape))
        return loss

    def step(batch: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=batch), axis=None)

    if compiled:
        step = jt.function(step)
    dataset = jt.data.Dataset.from_tensor_slices(rows(count)).shuffle(64, seed=3).batch(BATCH)
    distributed = strategy.experimental_distribute_dataset(dataset)
    losses = [float(step(batch)) for _ in range(2) for batch in distributed]
    return {
        "losses": losses,
        "w": w.numpy().tolist(),
        "b": float(b),
        "state": [v.numpy().tolist() for v in optimizer.variables],
        "mean loss": float(mean_loss.result()),
        "seen": float(seen.result()),
    }


def embedding(strategy: jt.Strategy, compiled: bool) -> dict[str, Any]:
    """A table of which each example updates one row, by gradients that hold only those rows."""
    with strategy.scope():
        table = jt.Variable(np.arange(12, dtype=np.float32).reshape(6, 2), name="table")
        optimizer = jt.Optimizer(optax.sgd(0.1))

    def replica_step(ids: Any) -> Any:
        found = table.value()[ids]
        gradient = jt.IndexedSlices(2 * found / BATCH, ids, table.shape)
        optimizer.apply_gradients([(gradient, table)])
        return jnp.sum(found**2) / BATCH

    def step(ids: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(replica_step, args=(ids,)), axis=None)

    if compiled:
        step = jt.function(step)
    ids = np.array([0, 1, 1, 5, 0, 2, 2, 2] * 2 + [3, 3, 4, 1])
    batches = strategy.experimental_distribute_dataset(
        jt.data.Dataset.from_tensor_slices(ids).batch(BATCH)
    )
    losses = [float(step(batch)) for batch in batches]
    return {"losses": losses, "table": table.numpy().tolist()}


def plain_tree(strategy: jt.Strategy) -> dict[str, Any]:
    """Parameters that are no variables, with gradients combined by `all_reduce`."""
    x, y = rows(BATCH)

    @jt.function
    def step(parameters: Any, batch: Any) -> Any:
        def replica_step(parameters: Any, x: Any, y: Any) -> Any:
            gradient = x.T @ (x @ parameters["w"] - y) / BATCH
            total = jt.get_replica_context().all_reduce("SUM", {"w": gradient})
            return {"w": parameters["w"] - 0.1 * total["w"]}

        return strategy.run(replica_step, args=(parameters, *batch))

    batches = strategy.experimental_distribute_dataset(
        jt.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).repeat(3)
    )
    parameters: Any = {"w": jnp.zeros(FEATURES)}
    for batch in batches:
        parameters = step(parameters, batch)
    local = strategy.experimental_local_results(parameters)
    return {"w": np.asarray(local[0]["w"]).tolist()}


def files(strategy: jt.Strategy, folder: Path) -> dict[str, Any]:
    """Numbers in text files of different length: what is seen, and whether each is seen once."""
    names = jt.data.Dataset.list_files(str(folder / "*.txt"), shuffle=False)
    numbers = jt.data.TextLineDataset(names).map(lambda line: np.int32(int(line)))
    return {"seen": sorted(everything(strategy, numbers.batch(4)))}


def shuffled(strategy: jt.Strategy, seed: int | None) -> list[list[int]]:
    """What two epochs of a shuffled dataset consist of, global batch by global batch."""
    dataset = jt.data.Dataset.range(10).shuffle(10, seed=seed).batch(4)
    return [everything(strategy, dataset) for _ in range(2)]


def everything(strategy: jt.Strategy, dataset: jt.data.Dataset) -> list[int]:
    """Return all examples of all replicas, batch by batch."""
    found: list[int] = []
    for batch in strategy.experimental_distribute_dataset(dataset):
        found += np.asarray(strategy.gather(batch, axis=0)).tolist()
    return found


def remembered(strategy: jt.Strategy) -> list[Any]:
    """Functions that JAX remembers read a variable, before and after assignments."""
    found: list[Any] = []
    for name in ("jit", "scan", "cond", "checkpoint"):
        with strategy.scope():
            w = jt.Variable(2.0, aggregation=jt.VariableAggregation.MEAN)
        use = User(name, w, fresh=False)

        def replica(x: Any, w: Any = w, use: Any = use) -> Any:
            before = use(x)
            w.assign_add(x)
            value, slope = jt.value_and_grad(lambda: use(x), w)()
            return jnp.stack([before, use(x), value, slope])

        def step(x: Any, w: Any = w, use: Any = use, replica: Any = replica) -> Any:
            outside = use(x)
            results = strategy.run(replica, args=(x,))
            return outside, strategy.reduce("MEAN", results, axis=None), use(x)

        compiled = jt.function(step)
        for run in (compiled, step, compiled):
            found.append([np.asarray(one).tolist() for one in run(jnp.float32(0.5))])
    return found


COMPARED: dict[str, Callable[[jt.Strategy], Any]] = {
    "even, eager": lambda s: regression(s, 16, compiled=False),
    "even, compiled": lambda s: regression(s, 16, compiled=True),
    "last batch of 5, eager": lambda s: regression(s, 13, compiled=False),
    "last batch of 5, compiled": lambda s: regression(s, 13, compiled=True),
    "last batch of 1, eager": lambda s: regression(s, 9, compiled=False),
    "last batch of 1, compiled": lambda s: regression(s, 9, compiled=True),
    "embedding, eager": lambda s: embedding(s, compiled=False),
    "embedding, compiled": lambda s: embedding(s, compiled=True),
    "plain tree": plain_tree,
    "remembered functions, eager and compiled": remembered,
    "seeded shuffle": lambda s: shuffled(s, seed=11),
}
"""Training that gives the same everywhere, by name."""
