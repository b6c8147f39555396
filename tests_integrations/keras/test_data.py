"""Whatever Keras can be fed with, under a strategy."""

import threading

import grain
import jax.numpy as jnp
import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
import torch

import jaxtribute as jt
from jaxtribute.keras import DatasetCreator
from jaxtribute.keras._batches import distributed
from tests_integrations.keras import _plain
from tests_integrations.keras._plain import classifier, close, same_fit

BATCH = 8
X, Y = _plain.X[:21], _plain.Y[:21]  # the last batch has 5, which cannot be divided


@pytest.fixture
def trained(mirrored):
    """Return a function that trains a model from its beginning, and returns what it became."""
    keras.utils.set_random_seed(0)
    with mirrored.scope():
        model = classifier(optimizer="sgd")
    initial = model.get_weights()

    def train(*args, **kwargs):
        model.set_weights(initial)
        history = model.fit(*args, **{"epochs": 2, "shuffle": False, "verbose": 0} | kwargs).history
        return history, model.get_weights(), model

    return train


class Slices(keras.utils.PyDataset):
    """Batches of the examples, read by threads."""

    def __init__(self, **kwargs) -> None:
        super().__init__(**kwargs)
        self.threads, self.told = set(), []

    def __len__(self) -> int:
        return -(-len(X) // BATCH)

    def __getitem__(self, index):
        self.threads.add(threading.current_thread().name)
        rows = slice(index * BATCH, (index + 1) * BATCH)
        return X[rows], Y[rows]

    def on_epoch_begin(self) -> None:
        self.told.append("begin")

    def on_epoch_end(self) -> None:
        self.told.append("end")


def grain_batches():
    examples = [(x, y) for x, y in zip(X, Y, strict=True)]
    return grain.MapDataset.source(examples).batch(BATCH)


def torch_batches():
    examples = torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))
    return torch.utils.data.DataLoader(examples, batch_size=BATCH)


def endless():
    while True:
        for start in range(0, len(X), BATCH):
            yield X[start : start + BATCH], Y[start : start + BATCH]


def test_every_kind_of_data_gives_what_arrays_give(mirrored, trained):
    ours = jt.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    weights = {0: 0.5, 2: 3.0}
    expected = [trained(X, Y, batch_size=BATCH, class_weight=each)[:2] for each in (None, weights)]
    given = {
        "jax": lambda: ((jnp.asarray(X), jnp.asarray(Y)), {"batch_size": BATCH}),
        "torch tensors": lambda: (
            (torch.from_numpy(X), torch.from_numpy(Y)),
            {"batch_size": BATCH},
        ),
        "tf tensors": lambda: ((tf.constant(X), tf.constant(Y)), {"batch_size": BATCH}),
        "pandas": lambda: ((pd.DataFrame(X), pd.Series(Y)), {"batch_size": BATCH}),
        "jt.data": lambda: ((ours,), {}),
        "distributed": lambda: ((mirrored.experimental_distribute_dataset(ours),), {}),
        "grain": lambda: ((grain_batches(),), {}),
        "grain iter": lambda: ((grain_batches().to_iter_dataset(),), {}),
        "tf.data": lambda: ((tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH),), {}),
        "torch": lambda: ((torch_batches(),), {}),
        "PyDataset": lambda: ((Slices(),), {}),
        "PyDataset, 2 threads": lambda: ((Slices(workers=2),), {}),
        "generator": lambda: ((endless(),), {"steps_per_epoch": 3}),
    }
    for name, make in given.items():
        args, kwargs = make()
        weighted = name in ("jt.data", "PyDataset", "tf.data")
        if weighted:
            kwargs |= {"class_weight": weights}
        found = trained(*args, **kwargs)[:2]
        for a, e in zip(found[1], expected[weighted][1], strict=True):
            np.testing.assert_allclose(a, e, rtol=2e-4, atol=2e-5, err_msg=name)
        close(found[0], expected[weighted][0])


def test_a_generator_is_read_once(trained):
    def batches():
        for _ in range(3):
            yield X[:BATCH], Y[:BATCH]

    with pytest.warns(UserWarning, match="no data left"):
        history, _, model = trained(batches(), epochs=3)
    assert len(history["loss"]) == 1
    used_up = batches()
    list(used_up)
    with pytest.raises(ValueError, match="read to its end before"):
        model.fit(used_up)


def test_a_py_dataset_is_told_of_epochs_and_read_by_its_threads(trained):
    data = Slices(workers=2)
    trained(data, epochs=2, validation_data=Slices())
    assert data.told == ["begin", "end"] * 2
    assert all(name != "MainThread" for name in data.threads)


def test_a_py_dataset_is_shuffled_anew_in_each_epoch(mirrored):
    batches = distributed(mirrored, Slices(), shuffle=True)
    orders = [
        [mirrored.gather(x, axis=0)[0].tolist() for ((x, _),) in batches.epoch()] for _ in range(6)
    ]
    firsts = [X[start].tolist() for start in range(0, len(X), BATCH)]
    assert all(sorted(order) == sorted(firsts) for order in orders)
    assert len({str(order) for order in orders}) > 1


class Endless(Slices):
    """Has no last batch."""

    num_batches = None

    def __getitem__(self, index):
        return super().__getitem__(index % 3)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_py_dataset_without_end(trained, workers):
    expected = trained(X, Y, batch_size=BATCH)[:2]
    close(trained(Endless(workers=workers), steps_per_epoch=3)[:2], expected)
    with pytest.raises(ValueError, match=r"no end.*steps_per_epoch"):
        trained(Endless())


def test_a_function_that_makes_the_dataset(trained):
    def make(context):
        data = jt.data.Dataset.from_tensor_slices((X[:16], Y[:16]))
        return data.batch(context.get_per_replica_batch_size(BATCH)).repeat()

    expected = trained(X[:16], Y[:16], batch_size=BATCH)[:2]
    close(trained(DatasetCreator(make), steps_per_epoch=2)[:2], expected)
    with pytest.raises(ValueError, match="steps_per_epoch"):
        trained(DatasetCreator(make))


def test_nested_inputs(mirrored):
    def make() -> keras.Model:
        a, c = keras.Input((4,)), keras.Input((2,))
        model = keras.Model(
            {"a": [a], "b": {"c": c}}, keras.layers.Dense(1)(keras.layers.Concatenate()([a, c]))
        )
        model.compile("sgd", "mse")
        return model

    x = {"a": [X], "b": {"c": X[:, :2]}}
    same_fit(mirrored, make, x, X[:, 0], batch_size=8)


def test_the_order_of_predictions(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Rescaling(2.0)])
    numbers = np.arange(11.0)[:, None]
    data = jt.data.Dataset.from_tensor_slices(numbers).batch(4)
    for given, options in ((numbers, {"batch_size": 4}), (data, {})):
        np.testing.assert_array_equal(model.predict(given, verbose=0, **options), 2 * numbers)


def test_debugging_limits(mirrored):
    with mirrored.scope():
        model = classifier()
    keras.config.set_max_epochs(1)
    keras.config.set_max_steps_per_epoch(2)
    try:
        history = model.fit(X, Y, batch_size=4, epochs=5, verbose=0)
    finally:
        keras.config.set_max_epochs(None)
        keras.config.set_max_steps_per_epoch(None)
    assert history.epoch == [0]
    assert model.optimizer.iterations == 2
