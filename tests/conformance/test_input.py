"""Datasets, distributed by every strategy, train as one replica would."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jaxtribute as jt
from jaxtribute.data import Dataset
from tests.conformance._strategies import (
    Setup,
    all_compiled,
    every_kind,
    every_strategy,
    not_on_servers,
    several_replicas,
)

FEATURES = 3
BATCH = 8  # divides among 1, 2, 4 and 8 replicas
ROWS = 20  # two full batches, and one of 4 rows: less than one each on 8 replicas
RATE = 0.1

# All rows in full batches; a short last batch; and batches that never divide.
SIZES = [(16, 8), (20, 8), (11, 5)]


def regression(rows: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(7)
    x = generator.normal(size=(rows, FEATURES)).astype(np.float32)
    y = (x @ generator.normal(size=FEATURES) + 0.5).astype(np.float32)
    return x, y


def examples(setup: Setup, element: Any) -> list[Any]:
    """Return all examples of an element in their order: workers get the parts of it in turn."""
    parts, count = setup.parts(element), len(setup.local_replicas)
    in_order = [part for i in range(count) for part in parts[i::count]]
    return [example for part in in_order for example in np.asarray(part).tolist()]


def distribute(setup: Setup, dataset: Any) -> jt.DistributedDataset:
    return setup.strategy.experimental_distribute_dataset(dataset)


# --- Every example once ----------------------------------------------------------------------


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
@pytest.mark.parametrize(("rows", "batch_size"), SIZES)
@pytest.mark.parametrize("source", ["table", "stream", "list"])
def test_every_example_is_delivered_once_in_order(setup: Setup, rows, batch_size, source):
    dataset = Dataset.range(rows).batch(batch_size)
    if source == "stream":
        dataset = Dataset.from_generator(lambda: iter(range(rows))).batch(batch_size)
    distributed = distribute(setup, list(dataset) if source == "list" else dataset)
    for _ in range(2):
        found = [examples(setup, element) for element in distributed]
        assert found == [batch.tolist() for batch in dataset]


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_every_example_is_delivered_once_shuffled(setup: Setup):
    dataset = Dataset.range(ROWS).shuffle(ROWS, seed=3).batch(BATCH)
    distributed = distribute(setup, dataset)
    epochs = [[e for x in distributed for e in examples(setup, x)] for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(ROWS))
    assert epochs[0] != epochs[1] != epochs[2]
    plain = Dataset.range(ROWS).shuffle(ROWS, seed=3).batch(BATCH)
    assert epochs == [np.concatenate(list(plain)).tolist() for _ in range(3)]


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_every_example_of_datasets_from_a_function_is_delivered_once(setup: Setup):
    dataset = setup.strategy.distribute_datasets_from_function(
        lambda context: (
            Dataset.range(ROWS)
            .batch(3)
            .shard(context.num_input_pipelines, context.input_pipeline_id)
        )
    )
    assert [e for x in dataset for e in examples(setup, x)] == list(range(ROWS))


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_structures_arrive_as_they_were(setup: Setup):
    data = {"x": np.arange(16.0).reshape(8, 2), "y": (np.arange(8), np.arange(8) > 3)}
    (element,) = distribute(setup, Dataset.from_tensor_slices(data).batch(8))
    assert examples(setup, element["x"]) == data["x"].tolist()
    assert examples(setup, element["y"][0]) == data["y"][0].tolist()
    assert examples(setup, element["y"][1]) == data["y"][1].tolist()


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_the_parts_are_on_the_devices_of_their_replicas(setup: Setup):
    (element,) = distribute(setup, Dataset.range(8).batch(8))
    local = setup.strategy.experimental_local_results(element)
    found = [device for part in local for device in part.devices()]
    assert found == list(setup.strategy.topology.local_devices)


# --- Steps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("setup", not_on_servers(every_strategy()))
def test_a_loop_over_the_dataset(setup: Setup):
    dataset = distribute(setup, Dataset.range(ROWS).batch(BATCH))

    @setup.function
    def step(x):
        doubled = setup.strategy.run(lambda x: x * 2, args=(x,))
        return setup.strategy.reduce("SUM", doubled, axis=0)

    assert [int(step(x)) for x in dataset] == [56, 184, 140]


@pytest.mark.parametrize("captured", [False, True], ids=["argument", "captured"])
@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_next_inside_a_function(setup: Setup, captured):
    own = iter(distribute(setup, Dataset.range(3 * BATCH).batch(BATCH)))
    bodies = []

    @setup.function
    def step(iterator):
        bodies.append(1)
        x = next(own if captured else iterator)
        return setup.strategy.reduce("SUM", setup.strategy.run(jnp.sum, args=(x,)), axis=None)

    first = int(step(own))
    traced = len(bodies)
    assert [first, int(step(own)), int(step(own))] == [28, 92, 156]
    assert len(bodies) == traced
    assert step.experimental_get_tracing_count() == 1
    for _ in range(2):
        with pytest.raises(jt.errors.OutOfRangeError):
            step(own)


@pytest.mark.parametrize("setup", not_on_servers(every_kind()))
def test_optionals_end_a_loop(setup: Setup):
    iterator = iter(distribute(setup, Dataset.range(ROWS).batch(BATCH)))

    @setup.function
    def step(iterator):
        found = iterator.get_next_as_optional()
        if not found.has_value():
            return jnp.int32(-1)
        return setup.strategy.reduce("SUM", found.get_value(), axis=0)

    assert [int(step(iterator)) for _ in range(4)] == [28, 92, 70, -1]


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_an_epoch_inside_a_function(setup: Setup):
    dataset = distribute(setup, Dataset.range(ROWS).batch(BATCH))

    @setup.function
    def epoch(dataset):
        total = 0
        for x in dataset:
            sums = setup.strategy.run(jnp.sum, args=(x,))
            total += setup.strategy.reduce("SUM", sums, axis=None)
        return total

    assert [int(epoch(dataset)) for _ in range(2)] == [190, 190]


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_the_element_spec_is_an_input_signature(setup: Setup):
    dataset = distribute(setup, Dataset.range(ROWS).batch(BATCH))
    iterator = iter(dataset)
    assert iterator.element_spec == dataset.element_spec

    @jt.function(input_signature=[dataset.element_spec])
    def step(x):
        return setup.strategy.reduce("SUM", x, axis=0)

    assert [int(step(x)) for x in iterator] == [28, 92, 70]


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_the_element_spec_tells_sizes_that_are_certain(setup: Setup):
    dataset = distribute(setup, Dataset.range(ROWS).batch(BATCH, drop_remainder=True))
    size = BATCH // setup.replicas
    # A worker that has nothing left gets empty batches until the others have come to the end.
    spec = jt.TensorSpec([None if setup.has_workers else size], jnp.int32)
    several = jt.PerReplicaSpec(*[spec] * len(setup.local_replicas))
    assert dataset.element_spec == (spec if setup.replicas == 1 else several)
    shapes = {p.shape for x in dataset for p in setup.strategy.experimental_local_results(x)}
    assert shapes == {(size,)}


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_epochs_start_anew(setup: Setup):
    dataset = distribute(setup, Dataset.range(ROWS).batch(BATCH))
    iterator = iter(dataset)
    next(iterator)
    assert len(list(dataset)) == 3  # whatever another iterator does
    assert len(list(iterator)) == 2
    assert list(iterator) == []
    assert len(list(dataset)) == dataset.cardinality() == 3


@pytest.mark.parametrize("setup", not_on_servers(every_kind()))
def test_a_repeated_dataset_goes_on(setup: Setup):
    iterator = iter(distribute(setup, Dataset.range(12).repeat().batch(BATCH)))

    @setup.function
    def step(x):
        return setup.strategy.reduce("SUM", x, axis=0)

    found = [int(step(next(iterator))) for _ in range(4)]
    iterator.close()
    assert found == [28, 44, 60, 28]


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_reduce_combines_all_elements(setup: Setup):
    dataset = distribute(setup, Dataset.range(ROWS).batch(BATCH))

    def add(state, x):
        total, count = state
        return total + setup.strategy.reduce("SUM", x, axis=0), count + 1

    total, count = dataset.reduce((0, 0), add)
    assert (int(total), count) == (190, 3)


@pytest.mark.parametrize("setup", not_on_servers(every_kind()))
def test_next_is_not_for_one_replica(setup: Setup):
    iterator = iter(distribute(setup, Dataset.range(BATCH).batch(BATCH)))
    if not isinstance(setup.strategy, type(jt.get_strategy())):
        with pytest.raises(ValueError, match="inside a replica"):
            setup.run(lambda: next(iterator))
    assert examples(setup, next(iterator)) == list(range(BATCH))
    iterator.close()


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_a_numpy_dataset_is_distributed_like_any_other(setup: Setup):
    dataset = setup.strategy.experimental_make_numpy_dataset(np.arange(ROWS)).batch(BATCH)
    found = [examples(setup, x) for x in distribute(setup, dataset)]
    assert found == [batch.tolist() for batch in dataset]


# --- Training --------------------------------------------------------------------------------


@functools.cache
def expected_training(rows: int, batch_size: int, epochs: int) -> tuple[Any, list[float]]:
    """Train in plain NumPy on whole batches; return the weights, and each epoch's mean loss."""
    x, y = regression(rows)
    w = np.zeros(FEATURES)
    losses = []
    for _ in range(epochs):
        squares = []
        for start in range(0, rows, batch_size):
            a, b = x[start : start + batch_size], y[start : start + batch_size]
            errors = a @ w - b
            squares.extend(errors**2)
            w = w - RATE * 2 * a.T @ errors / len(b)
        losses.append(float(np.mean(squares)))
    return w, losses


class Training:
    """A linear model, and a step that knows how large its global batch is."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        with setup.strategy.scope():
            self.w = jt.Variable(jnp.zeros(FEATURES), aggregation=jt.VariableAggregation.SUM)
            self.loss = jt.metrics.Mean()

    def step(self, batch: Any) -> None:
        strategy = self.setup.strategy
        _, y = batch
        rows = strategy.reduce("SUM", strategy.run(jnp.ones_like, args=(y,)), axis=0)
        strategy.run(self._replica_step, args=(*batch, rows))

    def _replica_step(self, x: Any, y: Any, rows: Any) -> None:
        errors = x @ self.w.value() - y
        self.loss.update_state(errors**2)
        self.w.assign_add(-RATE * 2 * errors @ x / rows)

    def end_epoch(self) -> float:
        loss = float(self.loss.result())
        self.loss.reset_state()
        return loss


@pytest.mark.parametrize("setup", not_on_servers(every_kind()))
def test_training_equals_that_of_one_replica(setup: Setup):
    rows, batch_size = 11, 5  # never divides among 2 or 4 replicas
    dataset = distribute(setup, Dataset.from_tensor_slices(regression(rows)).batch(batch_size))
    training = Training(setup)
    step = setup.function(training.step)
    losses = []
    for _ in range(2):
        for batch in dataset:
            step(batch)
        losses.append(training.end_epoch())
    w, expected = expected_training(rows, batch_size, 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(training.w.numpy(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setup", not_on_servers(all_compiled()))
def test_training_with_next_inside_equals_that_of_one_replica(setup: Setup):
    rows, batch_size = 20, 8
    dataset = distribute(setup, Dataset.from_tensor_slices(regression(rows)).batch(batch_size))
    training = Training(setup)
    step = setup.function(lambda iterator: training.step(next(iterator)))
    losses = []
    for _ in range(2):
        iterator = iter(dataset)
        with pytest.raises(jt.errors.OutOfRangeError):
            while True:
                step(iterator)
        losses.append(training.end_epoch())
    w, expected = expected_training(rows, batch_size, 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(training.w.numpy(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setup", [p for p in not_on_servers(every_kind()) if p.values[0].compiled])
def test_training_in_an_epoch_function_equals_that_of_one_replica(setup: Setup):
    rows, batch_size = 20, 8
    dataset = distribute(setup, Dataset.from_tensor_slices(regression(rows)).batch(batch_size))
    training = Training(setup)

    @setup.function
    def epoch():
        for batch in dataset:
            training.step(batch)

    losses = []
    for _ in range(2):
        epoch()
        losses.append(training.end_epoch())
    w, expected = expected_training(rows, batch_size, 2)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(training.w.numpy(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setup", not_on_servers(several_replicas()))
def test_evaluation_by_reduce_equals_that_of_one_replica(setup: Setup):
    x, y = regression(11)
    dataset = distribute(setup, Dataset.from_tensor_slices((x, y)).batch(5))
    strategy = setup.strategy

    @setup.function
    def evaluate(batch):
        squares = strategy.run(lambda x, y: (x.sum(axis=1) - y) ** 2, args=batch)
        return strategy.reduce("SUM", squares, axis=0)

    total = sum(float(evaluate(batch)) for batch in dataset)
    np.testing.assert_allclose(total / 11, np.mean((x.sum(axis=1) - y) ** 2), rtol=1e-5)
